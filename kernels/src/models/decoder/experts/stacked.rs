//! Matrices of all experts of a layer that lie in one tensor each, as most files have them.

use super::super::parts::Part;
use crate::{
    ranks::RankOutputs,
    weights::{Tensor, WeightsError},
};

/// Inputs of an expert's gate, up and down.
pub(super) fn inputs([width, _, hidden]: &[RankOutputs; 3]) -> [usize; 3] {
    [hidden.all, hidden.all, width.all]
}

/// One matrix of all experts, in one tensor.
pub(super) struct Stack {
    pub tensor: Tensor,
    /// Rows from an expert to the next.
    every: usize,
    /// Row of the first.
    first: usize,
}

impl Stack {
    pub fn first_row(&self, expert: usize) -> usize {
        self.first + expert * self.every
    }

    /// Gates, ups and downs of a layer, if they lie so.
    pub fn find(
        part: &Part<'_>,
        block: &str,
        names: [&str; 3],
        count: usize,
        outputs: &[RankOutputs; 3],
    ) -> Result<Option<[Self; 3]>, WeightsError> {
        let ([width, _, hidden], inputs) = (outputs.each_ref().map(|outputs| outputs.all), inputs(outputs));
        let fused = format!("{block}.gate_up_proj");
        // GGUF files have another ending.
        let ending = ["", ".weight"].into_iter().find(|ending| part.has(&format!("{fused}{ending}")));
        if let Some(ending) = ending {
            // Gate and up of an expert are one below the other.
            let both = part.stack(&format!("{fused}{ending}"), count, 2 * width, hidden)?;
            let half = |first| Self { tensor: both.clone(), every: 2 * width, first };
            let tensor = part.stack(&format!("{block}.down_proj{ending}"), count, hidden, width)?;
            return Ok(Some([half(0), half(width), Self { tensor, every: hidden, first: 0 }]));
        }
        let both = format!("{block}.gate_up_proj");
        if ["blocks", "scales"].iter().any(|half| part.has(&format!("{both}_{half}"))) {
            // Rows of an expert's gate and up in turn.
            let half = |first| part.apart(&both, (count, 2 * width, hidden), (first, 2));
            let down = part.apart(&format!("{block}.down_proj"), (count, hidden, width), (0, 1))?;
            let of = |tensor, every| Self { tensor, every, first: 0 };
            return Ok(Some([of(half(0)?, width), of(half(1)?, width), of(down, hidden)]));
        }
        if !part.stacks_experts() {
            return Ok(None);
        }
        let stack = |which: usize| {
            let (every, name) = (outputs[which].all, format!("{block}.{}.weight", names[which]));
            Ok(Self { tensor: part.stack(&name, count, every, inputs[which])?, every, first: 0 })
        };
        Ok(Some([stack(0)?, stack(1)?, stack(2)?]))
    }
}
