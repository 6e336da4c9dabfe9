//! Provisioning as in Splitwise §IV-D and §VI.

use crate::{lengths, times};
use std::path::Path;
use std::time::Instant;
use tsnode_coordinator::{
    provisioning::demand::*,
    provisioning::kinds::*,
    provisioning::targets::*,
    provisioning::*,
    simulator::splitwise::{LINK, Sizes},
};
use tsnode_protocol::Seconds;

pub fn print(shared: &Path) {
    let a100 = times(shared, "a100-80gb");
    let h100 = times(shared, "h100-80gb");
    let hcap = times(shared, "h100-80gb-pcap");
    let sizes = Sizes::of("bloom-176b").expect("it is known");
    let kinds = vec![
        Kind::splitwise(Dgx::A100, &a100, sizes),
        Kind::splitwise(Dgx::H100, &h100, sizes),
        Kind::splitwise(Dgx::H100Capped, &hcap, sizes),
    ];
    let code = lengths(shared, "code");
    for (s, l) in [(30.0, 60.0), (60.0, 120.0), (120.0, 120.0)] {
        let q = Question {
            kinds: kinds.clone(),
            designs: vec![Design::Split { prompts: KindNo(1), answers: KindNo(1) }],
            demand: Demand::new(code.clone(), Drawn::Apart, 1).expect("some"),
            targets: Targets::TableVi(Alone::Table(a100.clone())),
            aim: Aim::Least { of: Measure::Cost, rate: 70.0 },
            budgets: vec![],
            machines: 512,
            short: Seconds(s),
            long: Seconds(l),
            transfer: sizes.kv / LINK,
        };
        let t = Instant::now();
        let a = provision(&q, &|_| false).expect("a question");
        println!(
            "{s} {l}: {:?} in {:.2} s; sims {} cut {} ruled out {} looks {:?}",
            a.best,
            t.elapsed().as_secs_f64(),
            a.simulations,
            a.cut,
            a.ruled_out,
            a.designs[0].looks.iter().map(|l| (l.mix.prompts, l.mix.answers, l.kept)).collect::<Vec<_>>()
        );
    }
}
