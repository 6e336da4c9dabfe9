//! Settings that can be used and are hardly what was meant: one line each, said when a peer starts and by `tsnode doctor`.

use super::{KNOBS, SettingOrigin, Settings, values};
use crate::hardware::{DeviceChoice, DeviceName, memory::Size};

/// Variables that verbs, tests and scripts of this repository read, by their beginnings.
const DEVELOPERS: [&str; 8] =
    ["TEST_", "EMULATED_", "WRITE_", "CARD_LOST", "KV_TRANSFERS", "SEED", "CONFIG", "RELEASE"];

/// What settings are held against.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HostSize {
    /// Processors that this process may use.
    pub cores: usize,
    /// Memory of the host, or of its largest GPU where that has more (bytes).
    pub memory_bytes: u64,
}

impl Settings {
    /// What is accepted and hardly meant.
    #[must_use]
    pub fn warnings(&self, machine: HostSize) -> Vec<String> {
        let mut said = Vec::new();
        if let Ok(threads) = self.threads()
            && !self.text("threads").is_empty()
            && threads.count > machine.cores
        {
            let (many, cores) = (threads.count, counted(machine.cores, "processor"));
            said.push(format!(
                "{}: {many} threads take turns on {cores}, which is slower than one for each; leave it out to have as many as there are",
                self.place("threads")
            ));
        }
        if let Ok(Some(values::ByteSize(asked))) = self.parse("memory")
            && asked > machine.memory_bytes
        {
            let (place, has) = (self.place("memory"), Size(machine.memory_bytes));
            said.push(format!("{place}: this machine has {has}, and no more than what is free of it is lent"));
        }
        said.extend(self.without_effect());
        said
    }

    /// Those that another one takes the effect of.
    fn without_effect(&self) -> Vec<String> {
        let is = |name, value: &str| self.text(name) == value;
        let on = |name| is(name, "true") || is(name, "1");
        let mut idle: Vec<(&'static str, String)> = Vec::new();
        if on("no-model") {
            let of_lenders = [
                "memory",
                "kv-memory",
                "swap-models",
                "keep",
                "kv-dtype",
                "device",
                "threads",
                "tensor-parallel",
                "hours",
                "speculative-decoding",
                "draft",
                "sharing",
                "model-budget",
                "allow-models",
            ];
            // An encoder is lent for itself.
            let encodes = ["embedding-model", "rerank-model"].iter().any(|name| !is(name, ""));
            let of_lenders = of_lenders.into_iter().filter(|name| !encodes || !["threads", "hours"].contains(name));
            idle.extend(of_lenders.map(|name| (name, "a gateway lends nothing (--no-model)".to_owned())));
        }
        if !on("no-model") && !on("swap-models") {
            idle.push(("keep", "all models stay in memory (without --swap-models)".into()));
        }
        // What is named is lent, and a draft is of that: nothing is fetched beside it.
        let is_named = ["model", "draft"].iter().any(|name| !is(name, "")) || !self.1.is_empty();
        if !on("no-model") && is_named {
            let why = "the model to lend is named, and none is fetched by itself (--model, --draft)";
            idle.extend(["model-budget", "allow-models"].map(|name| (name, why.to_owned())));
        } else if !on("no-model") && is("model-budget", "0") {
            idle.push(("allow-models", "none is fetched by itself (--model-budget 0)".into()));
        }
        if !is("fixed-kv", "") && !is("kv-codec", "auto") {
            let fixed = self.text("fixed-kv");
            idle.push(("kv-codec", format!("all KV goes through what is fixed (--fixed-kv {fixed})")));
        }
        if !on("no-model") && !is("tensor-parallel", "1") && self.only_gpus_compute() {
            let why = "no processor computes (--device); GPUs that hold each layer together are named as cuda:0-1";
            idle.push(("tensor-parallel", why.into()));
        }
        if is("speculative-decoding", "never") {
            idle.push(("draft", "nothing is proposed (--speculative-decoding never)".into()));
        }
        if on("allow-remote-http") && self.http().is_ok_and(|http| http.ip().is_loopback()) {
            idle.push(("allow-remote-http", format!("HTTP listens on this host alone (--http {})", self.text("http"))));
        }
        // A file is for every start: only what was said for this one is hardly meant.
        let said_now = |name| matches!(self.origin(name), Some(SettingOrigin::Flag | SettingOrigin::Variable(_)));
        let idle = idle.into_iter().filter(|(name, _)| said_now(*name));
        idle.map(|(name, why)| format!("{} has no effect: {why}", self.place(name))).collect()
    }
}

impl Settings {
    fn only_gpus_compute(&self) -> bool {
        let is_gpu = |name: &DeviceName| *name != DeviceName::Processor;
        let named = self.parse::<DeviceChoice>("device");
        matches!(named, Ok(Some(DeviceChoice::Named(names))) if names.iter().all(is_gpu))
    }
}

/// A line for each variable that is named as a setting and is none.
pub fn unknown_variables(names: impl IntoIterator<Item = String>) -> Vec<String> {
    const PREFIX: &str = "TSNODE_";
    let known: Vec<String> =
        KNOBS.iter().flat_map(|knob| [Some(knob.variable()), knob.former_variable()]).flatten().collect();
    let is_known =
        |name: &str| known.iter().any(|k| k == name) || DEVELOPERS.iter().any(|d| name[PREFIX.len()..].starts_with(d));
    let unknown = names.into_iter().filter(|name| name.starts_with(PREFIX) && !is_known(name));
    unknown
        .map(|name| {
            let near = values::nearest(&name[PREFIX.len()..], known.iter().map(|k| &k[PREFIX.len()..]));
            let next =
                near.map_or("`tsnode config show` lists all".into(), |near| format!("did you mean {PREFIX}{near}?"));
            format!("{name} is the variable of no setting, and has no effect; {next}")
        })
        .collect()
}

fn counted(count: usize, what: &str) -> String {
    if count == 1 { format!("1 {what}") } else { format!("{count} {what}s") }
}

#[cfg(test)]
mod tests {
    use super::super::tests::gather;
    use super::*;

    const SMALL: HostSize = HostSize { cores: 2, memory_bytes: 4 << 30 };

    fn warnings(flags: &[(&str, &str)], file: &str) -> Vec<String> {
        gather(flags, &[], file).unwrap().warnings(SMALL)
    }

    #[test]
    fn more_than_the_machine_has_is_said() {
        for (name, value, why) in [
            ("threads", "64", "64 threads take turns on 2 processors"),
            ("memory", "500GiB", "this machine has 4.0 GiB"),
        ] {
            let said = warnings(&[(name, value)], "");
            assert_eq!(said.len(), 1, "{said:?}");
            assert!(said[0].starts_with(&format!("--{name} {value}")) && said[0].contains(why), "{said:?}");
        }
        assert!(warnings(&[("threads", "2"), ("memory", "3GiB"), ("kv-memory", "1GiB")], "").is_empty());
        assert!(warnings(&[], "").is_empty());
        let in_file = warnings(&[], "memory = \"500GiB\"\n");
        assert!(in_file[0].contains("config.toml:1: memory = 500GiB"), "{in_file:?}");
    }

    #[test]
    fn a_flag_that_another_one_takes_the_effect_of_is_said() {
        let draft = ("draft", "small.gguf");
        for (flags, idle) in [
            (&[("no-model", "true"), ("memory", "1GiB")][..], "--memory"),
            (&[("no-model", "true"), ("hours", "22:00-07:00")], "--hours"),
            (&[("speculative-decoding", "never"), draft], "--draft"),
            (&[("allow-remote-http", "true")], "--allow-remote-http"),
            (&[("keep", "a")], "--keep"),
            (&[("model", "a"), ("allow-models", "*")], "--allow-models"),
            (&[("model-budget", "8GiB"), draft], "--model-budget"),
            (&[("model-budget", "0"), ("allow-models", "*")], "--allow-models"),
            (&[("no-model", "true"), ("allow-models", "*")], "--allow-models"),
            (&[("fixed-kv", "int4"), ("kv-codec", "raw")], "--kv-codec"),
            (&[("device", "cuda:0"), ("threads", "2"), ("tensor-parallel", "2")], "--tensor-parallel"),
        ] {
            let said = warnings(flags, "");
            assert_eq!(said.len(), 1, "{said:?}");
            assert!(said[0].starts_with(idle) && said[0].contains("has no effect: "), "{said:?}");
        }
        assert!(warnings(&[("no-model", "true")], "memory = \"1GiB\"\n").is_empty(), "a file is for every start");
        assert!(warnings(&[draft], "").is_empty());
        assert_eq!(warnings(&[("allow-models", "*")], "[[models]]\nmodel = \"a\"\n").len(), 1, "the file names one");
        let alone = [("model-budget", "8GiB"), ("allow-models", "*"), ("fixed-kv", "int4")];
        assert!(warnings(&alone, "").is_empty(), "{:?}", warnings(&alone, ""));
        let both = [("device", "cpu,cuda:0"), ("threads", "2"), ("tensor-parallel", "2")];
        assert!(warnings(&both, "").is_empty(), "{:?}", warnings(&both, ""));
    }

    #[test]
    fn an_unknown_variable_is_named_with_the_nearest() {
        let unknown = |name: &str| unknown_variables([name.to_owned()]);
        assert_eq!(
            unknown("TSNODE_THREDS"),
            ["TSNODE_THREDS is the variable of no setting, and has no effect; did you mean TSNODE_THREADS?"]
        );
        assert!(unknown("TSNODE_KVMEMORY")[0].ends_with("did you mean TSNODE_KV_MEMORY?"));
        assert!(unknown("TSNODE_COLOUR_OF_THE_SKY")[0].ends_with("`tsnode config show` lists all"));
        for known in [
            "TSNODE_THREADS",
            "TSNODE_KV_MEMORY",
            "TSNODE_CONFIG",
            "TSNODE_SEEDS",
            "TSNODE_TEST_CARD",
            "TSNODE_RELEASES",
            "TSNODE_RELEASE_KEY",
            "HOME",
        ] {
            assert!(unknown(known).is_empty(), "{known}");
        }
    }
}
