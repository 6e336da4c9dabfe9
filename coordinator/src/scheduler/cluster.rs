//! What the scheduler plans on: kinds of devices, how many of each are on a host, and the links between hosts.

use super::figures::DeviceFigures;
use tsnode_protocol::{Bytes, BytesPerSecond, Seconds};

/// Devices of one kind on one host, by their place in [`Cluster::instances`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct InstanceId(pub u32);

/// Devices of instances, in the order of instances, each instance once.
pub type InstanceDevices = Vec<(InstanceId, u16)>;

/// A kind of device, by its place in [`Cluster::kinds`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct KindId(pub u16);

/// Devices of one kind on one host: the most that tensor parallelism may span.
#[derive(Clone, Debug, PartialEq)]
pub struct Instance {
    /// The host's name.
    pub name: String,
    /// What they are.
    pub kind: KindId,
    /// How many devices there are.
    pub count: u16,
    /// Where the host is: hosts of one site have the same links to everyone.
    pub site: u32,
    /// The link between two of them.
    pub inside: ClusterLink,
}

/// Latency α and bandwidth β of a directed link.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct ClusterLink {
    /// α, one way.
    pub latency: Seconds,
    /// β; zero where nothing gets through.
    pub bandwidth: BytesPerSecond,
}

impl ClusterLink {
    /// Nothing gets through.
    pub const NONE: Self = Self { latency: Seconds(0.0), bandwidth: BytesPerSecond(0.0) };

    /// α + bytes/β; infinite where nothing gets through.
    #[must_use]
    pub fn time(&self, bytes: Bytes) -> Seconds {
        if bytes <= Bytes(0.0) {
            return self.latency;
        }
        self.latency + bytes / self.bandwidth
    }

    /// Whether anything gets through.
    #[must_use]
    pub fn is_open(&self) -> bool {
        self.bandwidth.0 > 0.0
    }
}

/// Hosts with their devices, and the links between them.
#[derive(Clone, Debug, PartialEq)]
pub struct Cluster {
    /// What tables and reports call it.
    pub name: String,
    /// Kinds of devices in it.
    pub kinds: Vec<DeviceFigures>,
    /// Its hosts; a host with two kinds of devices is two instances.
    pub instances: Vec<Instance>,
    /// Links between sites, row to column; the diagonal is between two hosts of one site.
    links: Vec<ClusterLink>,
    sites: usize,
}

/// Why something is no cluster.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum ClusterError {
    /// A number that cannot be.
    #[error("{what} of {of:?} is {value}: it must be a positive number")]
    Figure {
        /// Which number.
        what: &'static str,
        /// Whose.
        of: String,
        /// What it says.
        value: f64,
    },
    /// Nothing to plan on.
    #[error("the cluster has no devices")]
    Empty,
    /// Too large to be real.
    #[error("{0} devices are more than {MOST_DEVICES}")]
    TooLarge(usize),
}

/// Devices a cluster may have.
pub const MOST_DEVICES: usize = 100_000;

impl Cluster {
    /// A cluster of these parts; `links` has one row for each site, one column for each site.
    ///
    /// # Errors
    /// Figures that are not positive and finite, no devices, too many.
    ///
    /// # Panics
    /// If `links` is not square or a site or kind is outside: a mistake of the caller.
    pub fn new(
        name: String,
        kinds: Vec<DeviceFigures>,
        instances: Vec<Instance>,
        links: Vec<Vec<ClusterLink>>,
    ) -> Result<Self, ClusterError> {
        let sites = links.len();
        assert!(links.iter().all(|row| row.len() == sites), "links are square");
        assert!(instances.iter().all(|i| (i.site as usize) < sites && usize::from(i.kind.0) < kinds.len()));
        let cluster = Self { name, kinds, instances, links: links.concat(), sites };
        cluster.check()?;
        Ok(cluster)
    }

    fn check(&self) -> Result<(), ClusterError> {
        let positive = |what, of: &str, value: f64| match value.is_finite() && value > 0.0 {
            true => Ok(()),
            false => Err(ClusterError::Figure { what, of: of.to_owned(), value }),
        };
        for kind in &self.kinds {
            positive("memory", &kind.name, kind.memory.0)?;
            positive("FLOP/s", &kind.name, kind.flops.0)?;
            positive("memory bandwidth", &kind.name, kind.bandwidth.0)?;
        }
        let plausible = |path: &ClusterLink| path.latency.is_plausible() && path.bandwidth.is_plausible();
        for instance in &self.instances {
            positive("bandwidth inside", &instance.name, instance.inside.bandwidth.0)?;
            if !plausible(&instance.inside) {
                positive("latency inside", &instance.name, instance.inside.latency.0)?;
            }
        }
        if let Some(bad) = self.links.iter().find(|p| !plausible(p)) {
            let value = if bad.latency.is_plausible() { bad.bandwidth.0 } else { bad.latency.0 };
            return Err(ClusterError::Figure { what: "latency or bandwidth", of: "a link".into(), value });
        }
        match self.devices() {
            0 => Err(ClusterError::Empty),
            n if n > MOST_DEVICES => Err(ClusterError::TooLarge(n)),
            _ => Ok(()),
        }
    }

    /// Devices in all.
    #[must_use]
    pub fn devices(&self) -> usize {
        self.instances.iter().map(|i| usize::from(i.count)).sum()
    }

    /// The instance with this id.
    #[must_use]
    pub fn instance(&self, id: InstanceId) -> &Instance {
        &self.instances[id.0 as usize]
    }

    /// All instances' ids.
    pub fn ids(&self) -> impl Iterator<Item = InstanceId> + use<> {
        (0..self.instances.len() as u32).map(InstanceId)
    }

    /// The figures of an instance's devices.
    #[must_use]
    pub fn figures(&self, id: InstanceId) -> &DeviceFigures {
        &self.kinds[usize::from(self.instance(id).kind.0)]
    }

    /// The link from one instance's devices to another's; to itself, the link inside.
    #[must_use]
    pub fn path(&self, from: InstanceId, to: InstanceId) -> ClusterLink {
        let (a, b) = (self.instance(from), self.instance(to));
        if from == to || a.name == b.name {
            return a.inside;
        }
        self.links[a.site as usize * self.sites + b.site as usize]
    }

    /// The same with every link between hosts replaced.
    #[must_use]
    pub fn with_links(mut self, path: ClusterLink) -> Self {
        self.links.fill(path);
        self
    }

    /// Some of its devices, in this order.
    #[must_use]
    pub fn part(&self, members: &[(InstanceId, u16)]) -> Self {
        let instance = |&(id, count): &(InstanceId, u16)| Instance { count, ..self.instance(id).clone() };
        Self { instances: members.iter().map(instance).collect(), ..self.clone() }
    }

    /// The same with each instance's devices so many times slower: a kind of their own.
    #[must_use]
    pub fn slowed(&self, times: impl Fn(InstanceId) -> f64) -> Self {
        let kinds = self.ids().map(|i| self.figures(i).slowed(times(i))).collect();
        let own = |(n, instance): (u16, &Instance)| Instance { kind: KindId(n), ..instance.clone() };
        Self { kinds, instances: (0..).zip(&self.instances).map(own).collect(), ..self.clone() }
    }

    /// The same without the named hosts.
    ///
    /// # Errors
    /// Names what is not there, or says that nothing is left.
    pub fn without(mut self, lost: &[String]) -> Result<Self, String> {
        for name in lost {
            if !self.instances.iter().any(|i| &i.name == name) {
                let names: Vec<&str> = self.instances.iter().map(|i| i.name.as_str()).take(20).collect();
                return Err(format!("no host is called {name:?}; there are {}", names.join(", ")));
            }
        }
        self.instances.retain(|i| !lost.contains(&i.name));
        self.check().map_err(|e| e.to_string())?;
        Ok(self)
    }

    /// What it costs an hour, if every kind's price is known.
    #[must_use]
    pub fn price(&self) -> Option<f64> {
        self.ids().map(|i| Some(self.figures(i).price? * f64::from(self.instance(i).count))).sum()
    }
}
