//! Shipped lengths against the traces they were fitted to, and against what is published of them.

use crate::shared;
use tsnode_coordinator::rng::Rng;
use tsnode_simulator::{
    generator::{Lengths, Percentiles},
    percentile::Sorted,
    trace,
};

/// Most that the distributions differ anywhere (Kolmogorov and Smirnov's distance).
const APART: f64 = 0.035;
/// Most that the means differ.
const MEAN: f64 = 0.025;

/// Splitwise §III-B: coding has a median of 1,500 prompt and 13 answer tokens, conversation of 1,020 and 129.
#[test]
fn medians_are_the_published_ones() {
    for (name, prompt, answer) in [("coding", 1500.0, 13.0), ("conversation", 1020.0, 129.0)] {
        let lengths = Lengths::named(name).unwrap();
        assert!((f64::from(lengths.prompts.at(0.5)) / prompt - 1.0).abs() < 0.03, "{name}");
        assert!((f64::from(lengths.answers.at(0.5)) / answer - 1.0).abs() < 0.03, "{name}");
    }
    assert!(Lengths::named("poetry").is_none());
}

#[test]
#[ignore = "compares with files of ../shared, which are not part of the project; .ci/run runs it where they are"]
fn drawn_lengths_are_distributed_as_the_traces() {
    for (name, file) in [("coding", "code"), ("conversation", "conv")] {
        let all = trace::read(&shared::read(&format!("data/azure_llm_2023_{file}.csv"))).unwrap();
        let lengths = Lengths::named(name).unwrap();
        let mut rng = Rng::new(1);
        let drawn: Vec<_> = (0..200_000).map(|_| lengths.draw(&mut rng)).collect();
        let prompts = (all.iter().map(|a| a.asked.prompt).collect(), drawn.iter().map(|a| a.prompt).collect());
        let answers = (all.iter().map(|a| a.asked.answer).collect(), drawn.iter().map(|a| a.answer).collect());
        compare(&format!("{name}'s prompts"), lengths.prompts, prompts);
        compare(&format!("{name}'s answers"), lengths.answers, answers);
    }
}

fn compare(what: &str, shipped: Percentiles, (real, drawn): (Vec<u32>, Vec<u32>)) {
    assert_eq!(Some(shipped), Percentiles::of(real.clone()), "{what}: not the fit that was shipped");
    let sorted = |all: &[u32]| Sorted::new(all.iter().map(|n| f64::from(*n)));
    let (a, b) = (sorted(&real), sorted(&drawn));
    for share in [0.5, 0.9] {
        assert!((b.at(share) / a.at(share) - 1.0).abs() < 0.02, "{what}: {} and {}", a.at(share), b.at(share));
    }
    assert!((b.mean() / a.mean() - 1.0).abs() < MEAN, "{what}: means {} and {}", a.mean(), b.mean());
    let apart = distance(real, drawn);
    println!("{what}: {apart:.3} apart, means {:.0} and {:.0}", a.mean(), b.mean());
    assert!(apart < APART, "{what}: {apart}");
}

/// The largest difference between two distribution functions.
fn distance(mut a: Vec<u32>, mut b: Vec<u32>) -> f64 {
    a.sort_unstable();
    b.sort_unstable();
    let below = |all: &[u32], n: u32| all.partition_point(|x| *x <= n) as f64 / all.len() as f64;
    a.iter().map(|&n| (below(&a, n) - below(&b, n)).abs()).fold(0.0, f64::max)
}
