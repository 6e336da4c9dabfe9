//! Kinds of machines: what they cost, what power they must be given, and how fast they are.

use crate::{
    measured_cost::Table,
    splitwise::{LIMITS, Sizes},
};
use serde::Serialize;
use std::fmt;
use std::sync::Arc;
use tsnode_coordinator::{
    policy::batching::BatchLimits,
    replay::iteration_cost::IterationCost,
    scheduler::{
        Cluster, InstanceId, Problem, Slo, Space, Workload,
        cluster::{ClusterLink, Instance, KindId},
        figures::DeviceFigures,
        parallel::{self, ParallelConfig},
        public_models::Model,
        slo::Reference,
    },
};
use tsnode_protocol::Phase;

/// A kind, by its place in a question.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
pub struct KindNo(pub usize);

/// What a mix has more or less of.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Measure {
    /// Price ($ an hour).
    Cost,
    /// Provisioned power (W), whether it is drawn or not.
    Power,
    /// Machines: space.
    Machines,
}

impl fmt::Display for Measure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Cost => "price",
            Self::Power => "power",
            Self::Machines => "number",
        })
    }
}

/// How fast a machine does something.
#[derive(Clone, Debug)]
pub struct MachineRole {
    /// Times of iterations.
    pub speed: Arc<dyn IterationCost>,
    /// What an iteration may hold.
    pub limits: BatchLimits,
    /// KV that fits (tokens).
    pub room: u64,
}

/// A kind of machine.
#[derive(Clone, Debug)]
pub struct MachineKind {
    /// Its name.
    pub name: String,
    /// $ an hour, where known.
    pub cost: Option<f64>,
    /// W, where known.
    pub power: Option<f64>,
    /// In a pool for prompts.
    pub prompts: MachineRole,
    /// In a pool for answers.
    pub answers: MachineRole,
    /// Doing both.
    pub both: MachineRole,
}

/// The machines of Splitwise's evaluation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Dgx {
    /// DGX-A100.
    A100,
    /// DGX-H100.
    H100,
    /// DGX-H100 with each GPU held to half its power: 70 % of the machine's (§IV-D).
    H100Capped,
}

impl Dgx {
    /// Table I's price ($ an hour).
    #[must_use]
    pub fn cost(self) -> f64 {
        match self {
            Self::A100 => 17.6,
            Self::H100 | Self::H100Capped => 38.0,
        }
    }

    /// W: Table I's eight GPUs of 400 and of 700 W. The ratios are Table V's, 1.75 and 1.23, whose machines have
    /// nothing else that takes power.
    #[must_use]
    pub fn power(self) -> f64 {
        match self {
            Self::A100 => 8.0 * 400.0,
            Self::H100 => 8.0 * 700.0,
            Self::H100Capped => 0.7 * 8.0 * 700.0,
        }
    }
}

impl MachineKind {
    /// One that is as fast whatever it does.
    #[must_use]
    pub fn alike(name: &str, cost: Option<f64>, power: Option<f64>, role: &MachineRole) -> Self {
        let [prompts, answers, both] = [role.clone(), role.clone(), role.clone()];
        Self { name: name.to_owned(), cost, power, prompts, answers, both }
    }

    /// A machine of Splitwise's, with its table of times.
    #[must_use]
    pub fn splitwise(dgx: Dgx, table: &Arc<Table>, sizes: Sizes) -> Self {
        let role = MachineRole { speed: table.clone(), limits: LIMITS, room: sizes.capacity() };
        let name = match dgx {
            Dgx::A100 => "DGX-A100",
            Dgx::H100 => "DGX-H100",
            Dgx::H100Capped => "DGX-H100 capped",
        };
        Self::alike(name, Some(dgx.cost()), Some(dgx.power()), &role)
    }

    /// By the cost model's closed forms: devices of one kind side by side on one host. `None` if they cannot hold the
    /// model.
    #[must_use]
    pub fn closed(
        host: &MachineHost,
        model: &Model,
        workload: &Workload,
        slo: Slo,
        reference: Reference,
    ) -> Option<Self> {
        let name = host.name.clone();
        let instance =
            Instance { name: name.clone(), kind: KindId(0), count: host.devices, site: 0, inside: host.inside };
        let cluster =
            Cluster::new(name.clone(), vec![host.device.clone()], vec![instance], vec![vec![host.inside]]).ok()?;
        let space = Space { group_devices: host.devices, ..Space::default() };
        let (model, workload) = (model.clone(), workload.clone());
        let problem = Problem::new(cluster, model, workload, 1.0, slo, reference, space).ok()?;
        let role = |phase| parallel::best(&problem, &[(InstanceId(0), host.devices)], phase).map(role);
        Some(Self {
            name,
            cost: host.cost,
            power: host.power,
            prompts: role(Phase::Prefill)?,
            answers: role(Phase::Decode)?,
            both: role(Phase::Mixed)?,
        })
    }

    /// What one takes of a measure, where that is known.
    #[must_use]
    pub fn weight(&self, of: Measure) -> Option<f64> {
        match of {
            Measure::Cost => self.cost,
            Measure::Power => self.power,
            Measure::Machines => Some(1.0),
        }
    }
}

/// A host to make a kind of.
#[derive(Clone, Debug, PartialEq)]
pub struct MachineHost {
    /// The kind's name.
    pub name: String,
    /// Its devices' figures.
    pub device: DeviceFigures,
    /// How many.
    pub devices: u16,
    /// The link between two of them.
    pub inside: ClusterLink,
    /// $ an hour, where known.
    pub cost: Option<f64>,
    /// W, where known.
    pub power: Option<f64>,
}

fn role(config: ParallelConfig) -> MachineRole {
    let tasks = LIMITS.tasks.min(config.batch as usize).max(1);
    let room = config.kv_tokens.0.max(0.0) as u64;
    MachineRole { limits: BatchLimits { tasks, ..LIMITS }, room, speed: Arc::new(config) }
}
