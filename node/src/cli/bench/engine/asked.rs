//! `--step`: which steps are measured in place of the usual ones.

use clap::{Arg, ArgAction, ArgMatches};
use tsnode_kernels::speed::StepShape;

/// What a step may be at the most: all tokens of one are made in memory.
const MOST_BATCH: u32 = 1024;
const MOST_TOKENS: u32 = 1 << 20;

pub(super) fn arg() -> Arg {
    Arg::new("step")
        .long("step")
        .value_name("BATCH,CONTEXT,NEW")
        .action(ArgAction::Append)
        .value_parser(parse)
        .help("Measure this step alone, as 64,1024,1: sequences, tokens each has, tokens each gets; may be repeated")
}

/// The steps that were asked for; none if the usual ones are wanted.
pub(super) fn steps(matches: &ArgMatches) -> Option<Vec<StepShape>> {
    matches.get_many::<StepShape>("step").map(|steps| steps.copied().collect())
}

fn parse(text: &str) -> Result<StepShape, String> {
    let numbers = text.split(',').map(|part| part.trim().parse::<u32>());
    let numbers: Vec<u32> = numbers.collect::<Result<_, _>>().map_err(|e| format!("{e}: a step is like 64,1024,1"))?;
    let &[batch, context, new] = numbers.as_slice() else {
        return Err("a step is three numbers, like 64,1024,1".into());
    };
    let each = context.checked_add(new);
    let all = each.and_then(|each| each.checked_mul(batch));
    if batch == 0 || new == 0 || batch > MOST_BATCH || all.is_none_or(|all| all > MOST_TOKENS) {
        return Err(format!("1 to {MOST_BATCH} sequences get at least a token each, of {MOST_TOKENS} in all"));
    }
    Ok(StepShape { batch, context, new })
}

#[cfg(test)]
mod tests {
    use super::{StepShape, parse};

    #[test]
    fn a_step_is_three_numbers_within_bounds() {
        assert_eq!(parse("64,1024,1"), Ok(StepShape { batch: 64, context: 1024, new: 1 }));
        for wrong in ["", "1,2", "1,2,3,4", "0,1,1", "1,1,0", "1,-1,1", "1025,1,1", "1024,1024,1", "1,4294967295,1"] {
            assert!(parse(wrong).is_err(), "{wrong}");
        }
    }
}
