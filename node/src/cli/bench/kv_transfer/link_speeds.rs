//! The cost gate on links of many speeds, beside both ways it chooses between.

use super::{
    client::{BenchAsk, KvTransferMode, Slowdown, Times},
    swarms::{HostedPeer, Swarms},
};
use crate::cli::exit::Exit;
use serde::Serialize;
use tsnode_coordinator::gateway::Predicted;

/// One speed of the link.
#[derive(Serialize)]
pub(super) struct Point {
    mbit: f64,
    in_place: Times,
    split: Times,
    gated: Times,
    /// Whether the gate split the last one.
    splits: bool,
    predicted: Option<Predicted>,
    /// What the gate's choice takes to the second token, over the better of the two, less one.
    over: Slowdown,
}

/// The speed from which on splitting is quicker (Mbit/s), between points by the logarithm of the rate.
#[derive(Serialize)]
pub(super) struct Crossing {
    measured: f64,
    predicted: f64,
}

/// Asks for answers in place, split, and as the gate likes, of the same two peers on links of each speed. Who decodes has one thread, so that it may
/// be worth while to have another prefill.
pub(super) async fn sweep(
    ask: &BenchAsk,
    prompt: u32,
    rates: &[f64],
    flags: &[String],
    watch: bool,
) -> Result<(Vec<Point>, Option<Crossing>), Exit> {
    let swarms = Swarms::new(flags)?;
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    if watch {
        say!("prompt {prompt}, one thread decodes, {cores} prefill; ms to the second token");
        say!(
            "{:>9}{:>11}{:>11}{:>11}{:>9}{:>26}",
            "Mbit/s",
            "in place",
            "split",
            "gate",
            "over",
            "it expected, here/there"
        );
    }
    let client = tsnode_testnet::client::plain_http();
    let mut points = Vec::new();
    for &mbit in rates {
        let peers = [cores, 1].map(|threads| HostedPeer { threads, cores: None });
        let pair = swarms.up("swept", peers, Some(mbit)).await?;
        pair.await_links(&client).await?;
        let [in_place, split, gated] = ask
            .in_turns(&pair, [KvTransferMode::IN_PLACE, KvTransferMode::SENT, KvTransferMode::GATED], prompt)
            .await?;
        let worse = [&in_place, &split].map(|way| gated.over(way, |t| t.second));
        // The better way is the one that it is further over.
        let over = if worse[0].median > worse[1].median { worse[0] } else { worse[1] };
        let trace = gated.trace();
        let point = Point {
            mbit,
            over,
            in_place: in_place.times(),
            split: split.times(),
            gated: gated.times(),
            splits: trace.is_some_and(|trace| trace.prefill != trace.decode),
            predicted: trace.and_then(|trace| trace.predicted),
        };
        if watch {
            point.print();
        }
        points.push(point);
        pair.down().await?;
    }
    let crossing = crossing(&points);
    if let Some(Crossing { measured, predicted }) = crossing.as_ref().filter(|_| watch) {
        say!("splitting is quicker from {measured:.1} Mbit/s on, by prediction from {predicted:.1}");
    }
    Ok((points, crossing))
}

impl Point {
    fn print(&self) {
        let [a, b, c] = [&self.in_place, &self.split, &self.gated].map(|t| format!("{:.1}", t.second * 1e3));
        let ms = |s: f64| format!("{:.0}", s * 1e3);
        let expected = self.predicted.map_or_else(String::new, |p| format!("{}/{}", ms(p.here.0), ms(p.elsewhere.0)));
        let chose = if self.splits { "splits" } else { "stays" };
        say!("{:>9}{a:>11}{b:>11}{c:>11}{:>7.1} %{expected:>19} {chose}", self.mbit, self.over.median * 1e2);
    }
}

/// Where splitting becomes quicker, measured and predicted.
fn crossing(points: &[Point]) -> Option<Crossing> {
    let measured: Vec<_> = points.iter().map(|p| (p.mbit, p.in_place.second - p.split.second)).collect();
    let predicted: Option<Vec<_>> =
        points.iter().map(|p| p.predicted.map(|e| (p.mbit, e.here.0 - e.elsewhere.0))).collect();
    Some(Crossing { measured: zero(&measured)?, predicted: zero(&predicted?)? })
}

/// Where a gain turns from negative to positive.
fn zero(gains: &[(f64, f64)]) -> Option<f64> {
    gains.windows(2).find_map(|pair| {
        let [(slow, loss), (fast, gain)] = pair else { return None };
        let turns = *loss < 0.0 && *gain >= 0.0;
        let part = loss / (loss - gain);
        turns.then(|| (slow.ln() + part * (fast.ln() - slow.ln())).exp())
    })
}

#[cfg(test)]
mod tests {
    use super::zero;

    #[test]
    fn a_gain_turns_between_the_points_around_it() {
        assert_eq!(zero(&[(1.0, -3.0), (10.0, -1.0), (1000.0, 1.0), (1e4, 2.0)]).map(f64::round), Some(100.0));
        assert_eq!(zero(&[(1.0, 1.0), (10.0, 2.0)]), None);
        assert_eq!(zero(&[(1.0, -1.0)]), None);
    }
}
