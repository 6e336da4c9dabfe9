//! A plan's group stage by stage: what its [`ParallelConfig`] sums up as the slowest of them and the way through all.

use super::iteration_cost::IterationCost;
use crate::{
    policy::batching::Batch,
    scheduler::{
        Problem,
        cost::{Decode, Prefill, StageEnds},
        parallel::{ParallelConfig, ParallelStage},
    },
};
use tsnode_protocol::{Seconds, SecondsPerToken, Tokens};

/// A stage and the way to the next.
#[derive(Clone, Copy, Debug)]
struct PipelineStage {
    prefill: Prefill,
    decode: Decode,
    /// Handing over: whatever the batch, and for each token in it.
    latency: Seconds,
    per_token: SecondsPerToken,
}

/// A group that may be at as many batches as it has stages.
#[derive(Clone, Debug)]
pub struct Pipeline {
    parts: Vec<PipelineStage>,
    whole: ParallelConfig,
    /// Whether a step reads a stage's weights once, whatever is in it.
    reads_once: bool,
}

impl Pipeline {
    /// Of a configuration.
    #[must_use]
    pub fn new(problem: &Problem, config: &ParallelConfig) -> Self {
        let stages = &config.stages;
        let part = |(place, stage): (usize, &ParallelStage)| {
            let ends = StageEnds { first: place == 0, last: place + 1 == stages.len() };
            let cost = problem.layer_cost(stage.instance, stage.tp)?;
            let (prefill, decode) = (cost.stage_prefill(stage.layers, ends), cost.stage_decode(stage.layers, ends));
            let mut part = PipelineStage { prefill, decode, latency: Seconds(0.0), per_token: SecondsPerToken(0.0) };
            if stages.len() > 1 {
                let path = problem.cluster.path(stage.instance, stages[(place + 1) % stages.len()].instance);
                part.latency = path.latency;
                // What the last stage hands back is a few token numbers.
                part.per_token =
                    if ends.last { part.per_token } else { (problem.model.row() / path.bandwidth).per_token() };
            }
            Some(part)
        };
        let parts = stages.iter().enumerate().filter_map(part).collect();
        Self { parts, whole: config.clone(), reads_once: false }
    }

    /// The same where prompts and answers of a step go through a stage's weights together, as nodes compute them. Closed forms have
    /// each prompt read them, and the answers beside them once more, and policies that mix more would seem slower than they are.
    #[must_use]
    pub fn reading_once(self) -> Self {
        Self { reads_once: true, ..self }
    }
}

impl IterationCost for Pipeline {
    fn iteration(&self, batch: &Batch) -> Seconds {
        if self.reads_once && self.parts.len() == 1 {
            return self.stage(0, batch);
        }
        IterationCost::iteration(&self.whole, batch)
    }

    fn delay(&self, batch: &Batch) -> Seconds {
        self.whole.delay(batch)
    }

    fn stages(&self) -> usize {
        self.parts.len()
    }

    fn stage(&self, place: usize, batch: &Batch) -> Seconds {
        let PipelineStage { prefill, decode, .. } = &self.parts[place];
        let mut time = Seconds(0.0);
        if batch.prompts > 0 {
            let (n, tokens) = (f64::from(batch.prompts), Tokens(batch.prompt_tokens as f64));
            let again = if self.reads_once { 0.0 } else { n - 1.0 };
            time += prefill.mean(tokens, batch.prompt_squares as f64) + prefill.fixed * again;
        }
        if batch.answers > 0 {
            let n = f64::from(batch.answers);
            time += decode.time(n, Tokens(batch.context as f64 / n));
        }
        if self.reads_once && batch.prompts > 0 && batch.answers > 0 {
            time -= prefill.fixed.min(decode.fixed);
        }
        time
    }

    fn kv_transfer(&self, place: usize, batch: &Batch) -> Seconds {
        let PipelineStage { latency, per_token, .. } = self.parts[place];
        // A prompt's first token leaves for the client, not for the first stage.
        let leaves = place + 1 == self.parts.len() && batch.answers == 0;
        if leaves { Seconds(0.0) } else { latency + per_token * Tokens(batch.tokens() as f64) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        policy::{
            choice::{Batches, MachineRoom},
            routing::{Asked, MachineNo},
            shares::{PhasePair, Shares},
        },
        replay::machines::{Alike, Arrival, Machine, Simulation},
        scheduler::{
            Cluster, Evaluator, Slo, Space, Workload, cluster_file, figures::Column, prompts::PromptChunking,
            public_models, search, slo::Reference,
        },
    };
    use std::sync::Arc;
    use tsnode_protocol::Phase;

    fn cloud32() -> Cluster {
        let text = cluster_file::SHIPPED.iter().find(|(n, _)| *n == "cloud32").unwrap().1;
        cluster_file::read(text, Column::Paper, Some("default")).unwrap()
    }

    fn problem() -> Problem {
        let model = public_models::by_name("LLaMA-30B").unwrap();
        let reference = Reference::a100(&model, Column::Paper).unwrap();
        let workload = Workload::named("coding").unwrap();
        Problem::new(cloud32(), model, workload, 3.0, Slo::e2e(5.0), reference, Space::default()).unwrap()
    }

    /// Groups of a plan for it.
    fn configs(problem: &Problem) -> Vec<ParallelConfig> {
        let effort = search::Effort { steps: 5, neighbours: 5, memory: 5, walks: 1, threads: 1 };
        let found = search::search(problem, 0, effort, &|| false);
        let mut evaluator = Evaluator::new(problem);
        let groups = search::shelved(&mut evaluator, &found.grouping).unwrap();
        groups.iter().map(|group| evaluator.shelved(*group).rated.config.clone()).collect()
    }

    /// When a prompt's first token is there, on a group that has nothing else to do and forms its steps so.
    fn first(batches: Batches, pipeline: &Pipeline, prompt: u32) -> Seconds {
        let room = MachineRoom { places: 8, tokens: 1 << 20, stages: pipeline.stages() };
        let machine = Machine { batching: batches.batching(room), cost: Arc::new(pipeline.clone()) };
        let only = PhasePair { prefill: MachineNo(0), decode: MachineNo(0), share: 1.0 };
        let links = Box::new(Alike { per_token: SecondsPerToken(0.0) });
        let simulation = Simulation::new(vec![machine], Box::new(Shares::new(vec![only], false)), links);
        let outcome = simulation.run(&[Arrival { at: Seconds(0.0), asked: Asked::new(prompt, 1) }], &|_| false);
        outcome.traces[0].first
    }

    /// Its chunks are at several stages at once, and it takes as long as plans are valued by.
    #[test]
    fn a_prompt_alone_takes_what_closed_forms_say() {
        let (problem, batches) = (problem(), Batches::Chunked(512));
        let mut several = 0;
        for config in configs(&problem).iter().filter(|config| config.stages.len() > 1) {
            several += 1;
            let pipeline = Pipeline::new(&problem, config);
            for prompt in [40, 256, 512, 1000, 1600] {
                let tokens = Tokens(f64::from(prompt));
                let expected = PromptChunking::from(batches).alone(config, Phase::Prefill, tokens);
                let took = first(batches, &pipeline, prompt);
                let (whole, stages) = (config.latency.time(tokens), config.stages.len());
                // Which stage takes longest they say once, for whole prompts: of a short step it may be another, by a little. Sooner is a
                // prompt whose last step is short, where a stage behind is quick.
                assert!(took <= expected * 1.05 && took >= expected * 0.85, "{took:?} of {expected:?}: {config:?}");
                assert!(prompt < 1000 || took < whole, "{prompt} tokens, {stages} stages: {took:?} of {whole:?}");
            }
        }
        assert!(several > 0, "some group has several stages");
    }

    /// What closed forms say of a group is what its stages say together.
    #[test]
    fn stages_sum_up_to_the_closed_forms() {
        let problem = problem();
        let mut several = 0;
        for config in &configs(&problem) {
            let pipeline = Pipeline::new(&problem, config);
            let p = pipeline.stages();
            several += usize::from(p > 1);
            let way = |batch: &Batch| -> Seconds {
                (0..p).map(|s| pipeline.stage(s, batch) + pipeline.kv_transfer(s, batch)).sum()
            };
            let slowest = |batch: &Batch| (0..p).map(|s| pipeline.stage(s, batch)).fold(Seconds(0.0), Seconds::max);
            let close = |a: Seconds, b: Seconds, what: &str| {
                assert!((a / b - 1.0).abs() < 1e-9, "{what}: {a:?} {b:?} {config:?}")
            };
            let prompt = Batch { prompts: 1, prompt_tokens: 1000, prompt_squares: 1_000_000, ..Batch::default() };
            close(way(&prompt), config.latency.time(Tokens(1000.0)), "latency");
            close(slowest(&prompt), config.busy.time(Tokens(1000.0)), "busy");
            // Together they read the weights once, and so do several prompts.
            let once = pipeline.clone().reading_once();
            let together = prompt.with_answers(8, 8 * 1000);
            let apart = |s: usize| pipeline.stage(s, &prompt) + pipeline.stage(s, &Batch::answers(8, 8 * 1000));
            let saved = |s: usize| (apart(s) - once.stage(s, &together)).0;
            assert!((0..p).all(|s| saved(s) > 0.0 && once.stage(s, &together) > once.stage(s, &prompt)));
            let two = Batch { prompts: 2, ..prompt };
            assert!((0..p).all(|s| once.stage(s, &two) == once.stage(s, &prompt)));
            assert!((0..p).all(|s| pipeline.stage(s, &two) > pipeline.stage(s, &prompt)));
            let part = Batch { answers: 8, context: 8 * 1000, ..Batch::default() };
            let round = way(&part).max(slowest(&part) * p as f64);
            close(round, config.iteration(8.0 * p as f64, Tokens(1000.0)), "round");
        }
        assert!(several > 0, "some group has several stages");
    }
}
