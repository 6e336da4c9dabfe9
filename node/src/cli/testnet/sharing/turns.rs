//! What models had of the device, live beside simulated: where the two differ, one sees here by what.

use tsnode_coordinator::policy::sharing::device_use::ServiceUse;

/// A row for each order, and in each for each of the models that are called so; in each cell the peer's figure and the simulator's.
pub(super) fn table<'a>(
    rows: impl Iterator<Item = (&'static str, &'a [ServiceUse], &'a [ServiceUse])>,
    models: &[&str],
) -> Vec<Vec<String>> {
    let head = [
        "ORDER",
        "OF",
        "STEPS, LIVE/SIMULATED",
        "BUSY (s)",
        "A STEP (ms)",
        "SEQUENCES A STEP",
        "PROMPT TOKENS A STEP",
        "WAIT A TURN (ms)",
        "IDLE (s)",
        "KEPT IN VAIN",
        "ERRANDS",
    ];
    let mut table = vec![head.map(String::from).to_vec()];
    for (order, live, simulated) in rows {
        let all = |of: &[ServiceUse]| of.iter().copied().sum::<ServiceUse>();
        table.push(cells(order, "all", &all(live), &all(simulated)));
        let each = models.iter().zip(live.iter().zip(simulated));
        table.extend(each.map(|(model, (live, simulated))| cells("", model, live, simulated)));
    }
    table
}

fn cells(order: &str, of: &str, live: &ServiceUse, simulated: &ServiceUse) -> Vec<String> {
    let both = |figure: fn(&ServiceUse) -> f64, digits: usize| {
        format!("{:.digits$}/{:.digits$}", figure(live), figure(simulated))
    };
    let a_step = |count: u64, used: &ServiceUse| count as f64 / used.steps.max(1) as f64;
    let of_steps = |live: f64, simulated: f64| format!("{live:.2}/{simulated:.2}");
    vec![
        order.to_owned(),
        of.to_owned(),
        both(|used| used.steps as f64, 0),
        both(|used| used.busy.0, 1),
        both(|used| used.step().0 * 1e3, 1),
        of_steps(a_step(live.sequences, live), a_step(simulated.sequences, simulated)),
        of_steps(a_step(live.prompt_tokens, live), a_step(simulated.prompt_tokens, simulated)),
        both(|used| used.waited.0 * 1e3 / (used.steps + used.errands).max(1) as f64, 1),
        both(|used| used.idle.0, 2),
        both(|used| used.passed as f64, 0),
        both(|used| used.errands as f64, 0),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;
    use tsnode_protocol::Seconds;

    #[test]
    fn each_figure_stands_beside_the_simulators() {
        let used = |steps, busy| {
            let (busy, waited) = (Seconds(busy), Seconds(3.0));
            ServiceUse {
                steps,
                busy,
                sequences: 50,
                prompt_tokens: 640,
                waited,
                idle: Seconds(0.25),
                ..Default::default()
            }
        };
        let (live, simulated) = ([used(10, 2.0), used(20, 4.0)], [used(10, 1.0), used(10, 2.0)]);
        let table = table([("doubling", &live[..], &simulated[..])].into_iter(), &["a", "b"]);
        assert_eq!(table.len(), 4);
        let all = ["doubling", "all", "30/20", "6.0/3.0", "200.0/150.0", "3.33/5.00", "42.67/64.00", "200.0/300.0"];
        assert_eq!(table[1][..8], all.map(String::from));
        let of_b = [
            "",
            "b",
            "20/10",
            "4.0/2.0",
            "200.0/200.0",
            "2.50/5.00",
            "32.00/64.00",
            "150.0/300.0",
            "0.25/0.25",
            "0/0",
            "0/0",
        ];
        assert_eq!(table[3][..], of_b.map(String::from));
    }
}
