//! What a plan is worth: the requests per second it can carry, by closed forms, from the adverts' measured speeds.
//!
//! Prefill is bound by arithmetic, decoding by reading weights and KV (Splitwise §III). A pipeline's rate is that of its
//! slowest stage.

use crate::{control::Members, gate};
use tsnode_protocol::{Group, Phase, Plan, Stage};

/// Prompt tokens of the request a plan is measured by: the mean of Azure's conversation trace (Splitwise §III-A).
pub const PROMPT_TOKENS: u32 = 1155;
/// Its answer.
pub const NEW_TOKENS: u32 = 211;
/// Sequences decoded together when rates are estimated.
const BATCH: f64 = 16.0;

/// Seconds a group needs for the prompt and for the answer of one request, each taking all of its time.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Work {
    /// For a prompt.
    pub prefill: f64,
    /// For an answer, its share of a batch.
    pub decode: f64,
}

/// The work of one request on a group; `None` if a stage's peer, device or model is not there.
#[must_use]
pub fn work(group: &Group, members: &Members<'_>) -> Option<Work> {
    let mut slowest = Work { prefill: 0.0, decode: 0.0 };
    for stage in &group.stages {
        let one = stage_work(group, stage, members)?;
        slowest.prefill = slowest.prefill.max(one.prefill);
        slowest.decode = slowest.decode.max(one.decode);
    }
    Some(slowest)
}

fn stage_work(group: &Group, stage: &Stage, members: &Members<'_>) -> Option<Work> {
    let advert = members.get(&stage.peer)?;
    let device = advert.devices.get(usize::from(stage.device))?;
    let shape = advert.models.iter().find(|m| m.id == group.model)?.shape;
    let part = f64::from(stage.layers.len()) / f64::from(shape.layers);
    let tokens = PROMPT_TOKENS.min(shape.context);
    let prefill = gate::prefill_flops(&shape, tokens) * part / device.flops.0.max(1.0);
    let read = shape.stage_bytes(stage.layers) as f64 / device.bandwidth.0.max(1.0);
    let compute = gate::prefill_flops(&shape, 1) * part / device.flops.0.max(1.0);
    let decode = f64::from(NEW_TOKENS) * (read / BATCH).max(compute);
    Some(Work { prefill, decode })
}

/// Requests per second: prefill groups bound it on one side, decode groups on the other, mixed groups do both.
#[must_use]
pub fn value(plan: &Plan, members: &Members<'_>) -> f64 {
    let (mut prefill, mut decode, mut mixed) = (0.0, 0.0, 0.0);
    for group in &plan.groups {
        let Some(work) = work(group, members) else { continue };
        match group.phase {
            Phase::Prefill => prefill += 1.0 / work.prefill,
            Phase::Decode => decode += 1.0 / work.decode,
            Phase::Mixed => mixed += 1.0 / (work.prefill + work.decode),
        }
    }
    f64::min(prefill, decode) + mixed
}
