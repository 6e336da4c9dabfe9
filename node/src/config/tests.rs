use super::*;
use crate::{faults::Wall, node::ModelChoice};
use tsnode_kernels::engine::Threads;
use tsnode_kernels::source::Precision;
use tsnode_protocol::{BytesPerSecond, KvCodec};

pub(super) fn gather(flags: &[(&str, &str)], variables: &[(&str, &str)], file: &str) -> Result<Settings, ConfigError> {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("config.toml");
    std::fs::write(&path, format!("{file}\n# ends here\n")).unwrap();
    let flags = flags.iter().map(|(k, v)| ((*k).to_owned(), (*v).to_owned())).collect();
    let find = |name: &str| variables.iter().find(|(k, _)| *k == name).map(|(_, v)| (*v).to_owned());
    Settings::gather(&flags, find, &path, true)
}

#[test]
fn every_rank_needs_a_thread() {
    let threads = |flags: &[(&str, &str)]| gather(flags, &[], "").unwrap().node().map(|node| node.threads);
    assert_eq!(threads(&[("threads", "4")]), Ok(Threads::together(4)));
    assert_eq!(threads(&[("threads", "4"), ("tensor-parallel", "3")]), Ok(Threads { count: 4, ranks: 3 }));
    assert_eq!(threads(&[("cores", "0-2,7")]), Ok(Threads::together(4)));
    assert_eq!(threads(&[("cores", "0-2"), ("threads", "2")]), Ok(Threads::together(2)));
    assert!(threads(&[("cores", "0"), ("threads", "2")]).is_err() && threads(&[("cores", "x")]).is_err());
    for wrong in ["0", "5", "two"] {
        let said = threads(&[("threads", "4"), ("tensor-parallel", wrong)]).unwrap_err().to_string();
        assert!(said.contains("tensor-parallel"), "{said}");
    }
}

#[test]
fn what_kv_goes_through_is_fixed_by_name_or_not_at_all() {
    let of = |flags: &[(&str, &str)]| gather(flags, &[], "").unwrap().node().map(|node| node.fixed_kv);
    let fixed = |text| of(&[("fixed-kv", text)]);
    assert_eq!([of(&[]), fixed("raw")], [Ok(None), Ok(Some(KvCodec::Raw))]);
    assert_eq!([fixed("int3"), fixed("int4")], [Ok(Some(KvCodec::Int3)), Ok(Some(KvCodec::Int4))]);
    assert!(fixed("auto").unwrap_err().to_string().contains("choose one of raw, int8, int4, int3"));
}

#[test]
fn flags_over_variables_over_the_file_over_defaults() {
    let file = "threads = 1\nname = \"a\"\nhttp = \"127.0.0.1:1\"\n";
    let settings = gather(&[("threads", "3")], &[("TSNODE_THREADS", "2"), ("TSNODE_NAME", "b")], file).unwrap();
    let node = settings.node().unwrap();
    assert_eq!((node.threads.count, node.name.as_str(), node.http.port()), (3, "b", 1));
    assert_eq!(node.listen.port(), 7447);
    let origin = |name| settings.iter().find(|(n, _, _)| *n == name).unwrap().2.to_string();
    assert_eq!(
        (origin("threads"), origin("name"), origin("listen")),
        ("flag".into(), "TSNODE_NAME".into(), "default".into())
    );
    assert!(origin("http").ends_with("config.toml:3"));
}

#[test]
fn what_is_wrong_is_named_with_its_line() {
    assert!(matches!(gather(&[], &[], "threads = \n"), Err(ConfigError::Syntax { line: 1, .. })));
    assert!(matches!(gather(&[], &[], "\nthread = 1\n"), Err(ConfigError::Unknown { line: 2, .. })));
    let wrong = gather(&[], &[], "\n\nthreads = \"x\"\n").unwrap().node().unwrap_err().to_string();
    assert!(wrong.contains("threads") && wrong.contains("config.toml:3"), "{wrong}");
    let wrong = gather(&[("invite", "ts1xyz")], &[], "").unwrap().node().unwrap_err().to_string();
    assert!(wrong.contains("invite"), "{wrong}");
}

#[test]
fn the_embedded_model_is_lent_whatever_others_serve_only_where_it_is_named() {
    let model = |flags: &[(&str, &str)]| {
        let models = gather(flags, &[], "").unwrap().node().unwrap().models;
        models.into_iter().map(|model| model.choice).next()
    };
    assert_eq!(model(&[]), Some(ModelChoice::Fallback));
    assert_eq!(model(&[("model", "embedded")]), Some(ModelChoice::Embedded));
    assert_eq!(model(&[("model", "./embedded")]), Some(ModelChoice::Path("./embedded".into())));
    assert_eq!(model(&[("no-model", "true")]), None);
}

#[test]
fn a_draft_model_wants_a_model_and_drafts() {
    let draft = |flags: &[(&str, &str)]| gather(flags, &[("TSNODE_DRAFT", "small.gguf")], "").unwrap().node();
    assert_eq!(draft(&[]).unwrap().models[0].draft, Some("small.gguf".into()));
    assert_eq!(draft(&[("speculative-decoding", "never")]).unwrap().models[0].draft, None);
    let wrong = draft(&[("no-model", "true")]).unwrap_err().to_string();
    assert!(wrong.contains("TSNODE_DRAFT") && wrong.contains("no model"), "{wrong}");
}

#[test]
fn only_a_model_of_ones_own_is_computed_otherwise() {
    let with = |flags: &[(&str, &str)]| gather(flags, &[("TSNODE_PRECISION", "exact")], "").unwrap().node();
    assert_eq!(with(&[("model", "embedded")]).unwrap().computed.precision, Precision::Exact);
    let wrong = with(&[]).unwrap_err().to_string();
    assert!(wrong.contains("TSNODE_PRECISION") && wrong.contains("--model"), "{wrong}");
    let long = |flags: &[(&str, &str)]| gather(flags, &[("TSNODE_LONG_CONTEXT", "true")], "").unwrap().node();
    assert!(long(&[("model", "phi")]).unwrap().computed.long_context);
    assert!(long(&[("no-model", "true")]).unwrap_err().to_string().contains("TSNODE_LONG_CONTEXT"));
}

#[test]
fn http_beyond_this_host_wants_a_key() {
    let open = gather(&[("http", "0.0.0.0:80")], &[], "").unwrap().node();
    assert!(open.unwrap_err().to_string().contains("--api-key"));
    assert!(gather(&[("http", "0.0.0.0:80"), ("api-key", "k")], &[], "").unwrap().node().is_ok());
}

#[test]
fn owners_set_limits() {
    let flags = [("memory", "2GiB"), ("upload-mbit", "8"), ("hours", "22:00-07:00")];
    let node = gather(&flags, &[], "").unwrap().node().unwrap();
    let upload = node.shaping.and_then(|s| s.upload);
    assert_eq!((node.memory_bytes, upload), (Some(2 << 30), Some(BytesPerSecond(1e6))));
    assert!(node.hours.is_some_and(|h| h.contain(0) && !h.contain(12 * 60)));
    let wrong = |name: &str, value: &str| gather(&[(name, value)], &[], "").unwrap().node().unwrap_err().to_string();
    for (name, value) in [("upload-mbit", "0"), ("upload-mbit", "inf"), ("hours", "22-7"), ("memory", "much")] {
        let said = wrong(name, value);
        assert!(said.contains(name), "{said}");
    }
    let said = wrong("upload-mbit", "0.001");
    assert!(said.contains("upload-mbit") && said.contains("at least 0.75") && said.contains("by hours"), "{said}");
    assert!(gather(&[("upload-mbit", "0.75")], &[], "").unwrap().node().is_ok());
    assert!(gather(&[("shape-mbit", "0.001")], &[], "").unwrap().node().is_ok(), "what is pretended may be worse");
}

#[test]
fn what_was_said_to_a_peer_goes_before_the_file_and_behind_flags() {
    let home = tempfile::tempdir().unwrap();
    let kept = |text: &str| std::fs::write(home.path().join("limits.toml"), text).unwrap();
    let folder = home.path().to_str().unwrap().to_owned();
    let with = |flags: &[(&str, &str)], file: &str| {
        let flags: Vec<_> = flags.iter().copied().chain([("data-dir", folder.as_str())]).collect();
        gather(&flags, &[], file).unwrap().with_kept_limits()
    };
    let node = |flags: &[(&str, &str)], file: &str| with(flags, file).unwrap().node().unwrap();
    assert_eq!(node(&[], "threads = 1\n").threads.count, 1, "nothing was said");
    kept("threads = \"2\"\nupload_mbit = \"\"\nhours = \"22:00-07:00\"\n");
    let started = node(&[], "threads = 1\nupload_mbit = 8\n");
    assert_eq!((started.threads.count, started.shaping, started.fixed_limits.len()), (2, None, 0));
    assert!(started.hours.is_some() && started.relay, "that nothing is limited was said, too");
    let flagged = node(&[("threads", "3")], "");
    assert_eq!((flagged.threads.count, flagged.fixed_limits["threads"].as_str()), (3, "--threads 3"));
    for (text, why) in [("name = \"a\"\n", "name is not kept there"), ("threads = \"many\"\n", "limits.toml:1")] {
        kept(text);
        let said = with(&[], "").and_then(|settings| settings.node().map(drop)).unwrap_err().to_string();
        assert!(said.contains(why), "{said}");
    }
}

#[test]
fn who_limits_uploads_relays_only_when_asked_to() {
    let relays = |flags: &[(&'static str, &str)]| gather(flags, &[], "").unwrap().node().unwrap().relay;
    assert!(relays(&[]) && !relays(&[("relay", "false")]) && !relays(&[("upload-mbit", "8")]));
    assert!(relays(&[("upload-mbit", "8"), ("relay", "true")]));
}

#[test]
fn what_the_version_before_called_otherwise_is_taken_by_either_name() {
    let streams = |variables: &[(&str, &str)], file: &str| gather(&[], variables, file).unwrap().kv_streams().unwrap();
    let two = streams(&[("TSNODE_KV_STREAMS", "2")], "");
    assert_ne!(two, streams(&[], ""));
    assert_eq!([streams(&[("TSNODE_KV_LANES", "2")], ""), streams(&[], "kv_lanes = 2\n")], [two, two]);
    assert_eq!(streams(&[("TSNODE_KV_LANES", "3"), ("TSNODE_KV_STREAMS", "2")], ""), two);
    let both = gather(&[], &[], "kv_lanes = 2\nkv_streams = 2\n").unwrap_err().to_string();
    assert!(both.contains("is said twice"), "{both}");
    assert!(warnings::unknown_variables(["TSNODE_GUESS".to_owned()]).is_empty());
}

#[test]
fn nothing_is_no_value() {
    for knob in KNOBS {
        for said in [
            gather(&[(knob.name, "")], &[], ""),
            gather(&[(knob.name, " ")], &[], ""),
            gather(&[], &[(&knob.variable(), "")], ""),
            gather(&[], &[], &format!("{} = \"\"\n", knob.name)),
        ] {
            let said = said.unwrap_err().to_string();
            assert!(said.contains("nothing is said") && said.contains("leave it out"), "{}: {said}", knob.name);
        }
    }
}

#[test]
fn a_part_of_an_address_is_enough() {
    let http = |text| gather(&[("http", text)], &[], "").unwrap().node().unwrap().http.to_string();
    assert_eq!((http("17499"), http("localhost:17499")), ("127.0.0.1:17499".into(), "127.0.0.1:17499".into()));
    let ollama = |text| gather(&[("ollama-port", text)], &[], "").unwrap().node().unwrap().ollama_port;
    assert_eq!((ollama("true"), ollama("false")), (true, false));
    let listen = gather(&[("listen", "17500")], &[], "").unwrap().node().unwrap().listen;
    assert_eq!((listen.ip().is_unspecified(), listen.port()), (true, 17500));
}

#[test]
fn a_wall_is_pretended_where_faults_may_be() {
    let wall = |flags: &[(&str, &str)]| gather(flags, &[], "").unwrap().node().map(|node| node.wall);
    assert_eq!(wall(&[("wall", "nat"), ("faults", "true")]), Ok(Wall::Nat));
    assert!(wall(&[("wall", "nat")]).unwrap_err().to_string().contains("--wall nat: pretending a wall needs --faults"));
    assert_eq!(wall(&[]), Ok(Wall::None));
}

/// Every setting with values that it cannot have: what, where and what to do, in our words, and the value is not all there is
/// to read.
#[test]
fn a_bad_value_is_refused_in_our_words() {
    const LIBRARIES: [&str; 9] = [
        "invalid digit",
        "invalid float",
        "invalid socket",
        "non-zero",
        "number too",
        "os error",
        "builder",
        "cannot parse",
        "empty string",
    ];
    // Any text is one of these.
    let texts = [
        "data-dir",
        "name",
        "model",
        "allow-models",
        "keep",
        "default-model",
        "draft",
        "embedding-model",
        "rerank-model",
        "invite-file",
        "api-key",
        "api-key-file",
        "allow-host",
        "log",
        "log-format",
    ];
    let long = "z".repeat(900);
    for knob in KNOBS.iter().filter(|knob| !texts.contains(&knob.name)) {
        for value in ["-1", "99999999999999999999", "nonsense", "\u{7}", "1e999", &long] {
            let is_fine = |said: &str| said.starts_with(&format!("--{} ", knob.name)) && said.len() < 220;
            let said = gather(&[(knob.name, value)], &[], "").unwrap().node().unwrap_err().to_string();
            assert!(is_fine(&said), "{said}");
            assert!(LIBRARIES.iter().all(|words| !said.contains(words)), "{said}");
        }
    }
}

#[test]
fn secrets_are_not_repeated() {
    let invite = format!("ts1{}", "abcdefgh".repeat(40));
    let said = gather(&[("invite", &invite)], &[], "").unwrap().node().unwrap_err().to_string();
    assert!(said.starts_with("--invite ts1abcde…: ") && said.contains("checksum"), "{said}");
}

#[test]
fn keys_of_the_file_are_known_and_said_once() {
    let wrong = |file: &str| gather(&[], &[], file).unwrap_err().to_string();
    assert!(
        wrong("kv_memroy = \"1GiB\"\n").ends_with("config.toml:1: unknown key `kv_memroy`; did you mean `kv_memory`?")
    );
    assert!(wrong("\nsky = 1\n").ends_with(":2: unknown key `sky`; `tsnode config show` lists all settings"));
    assert!(wrong("kv_memory = \"1GiB\"\nkv-memory = \"2GiB\"\n").contains("is said twice"));
    assert!(wrong("threads = [1]\n").contains("`threads` is a list or a table; write one value"));
    assert!(wrong("threads = \n").contains(":1: this is no TOML"));
}

#[test]
fn a_file_that_lost_its_settings_is_not_taken_for_none() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("config.toml");
    let gather = || Settings::gather(&BTreeMap::new(), |_| None, &path, false);
    assert!(gather().is_ok(), "there is none");
    std::fs::write(&path, "").unwrap();
    let said = gather().unwrap_err().to_string();
    assert!(said.contains("config.toml: it is empty") && said.contains("remove it"), "{said}");
    std::fs::write(&path, "# nothing yet\n").unwrap();
    assert!(gather().is_ok());
}
