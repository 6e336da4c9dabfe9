//! A group's leader against a ring that does what rings do, in any order.

mod any_order;
mod elsewhere;
mod prefixes;
mod prompts;
mod scenario;
mod speculation;
