//! A model's steps without a host around them, for profiles: `cargo bench -p tsnode-kernels --bench steps -- model.gguf
//! [batch context new]…`.
#![expect(clippy::unwrap_used, reason = "a benchmark that cannot start ends")]

use std::{path::Path, time::Duration};
use tsnode_kernels::{
    engine::{Engine, EngineConfig, Threads},
    source::ModelSource,
    speed::{StepShape, measure},
};
use tsnode_protocol::KvDtype;

const ALL: [u32; 15] = [1, 0, 512, 1, 0, 2048, 1, 128, 1, 1, 2048, 1, 16, 128, 1];

fn main() {
    let args: Vec<String> = std::env::args().skip(1).filter(|a| !a.starts_with('-')).collect();
    let [model, steps @ ..] = args.as_slice() else { return };
    let steps: Vec<u32> = steps.iter().map(|n| n.parse().unwrap()).collect();
    let source = ModelSource::open(Path::new(model)).unwrap();
    let threads = Threads::together(std::thread::available_parallelism().map_or(1, usize::from));
    let mut engine = Engine::new(EngineConfig { threads, pool_bytes: 1 << 30, kv_dtype: KvDtype::F16 }).unwrap();
    let stage = engine.load(source.load_stage(source.card().shape.all_layers()).unwrap()).unwrap();
    for step in (if steps.is_empty() { &ALL[..] } else { &steps }).chunks_exact(3) {
        let step = StepShape { batch: step[0], context: step[1], new: step[2] };
        let took = measure(&mut engine, stage, &source, KvDtype::F16, step, Duration::from_secs(2)).unwrap();
        println!("{step:?}: {:.1} tokens/s", f64::from(step.tokens()) / took.seconds);
    }
}
