//! `tsnode` without a peer: verbs that only compute, and what all verbs do with bad words and closed doors.

mod plan;
mod provision;
mod several;
mod simulate;
