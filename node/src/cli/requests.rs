//! `tsnode requests`: the last requests of the peer that is asked; of one, what ran where and what took longest.

use super::{
    ask::PeerClient,
    asking, is_set,
    output::print_json,
    text_layout::{COLUMNS, bytes, fitted, harmless, padded, time, width, wrapped},
};
use crate::{
    cli::exit::{Exit, ExitKind},
    config::Settings,
    gateway::Trace,
};
use clap::{Arg, ArgMatches, Command};
use serde::Deserialize;
use serde_json::Value;
use tsnode_coordinator::gateway::{LatencyPart, Resumption, SlowCause, Slowest};
use tsnode_protocol::{PeerId, RequestId, Seconds, Stage};

/// Columns of the labels that lines begin with.
const LABELS: usize = 11;
/// Most columns for the peers of a group.
const PEERS: usize = 32;

pub(super) fn command() -> Command {
    asking("requests", "The peer's last requests: what ran where, and what took longest", "tsnode requests")
        .arg(Arg::new("id").value_name("ID").help("One of them: its id (x-request-id), or how that begins"))
}

pub(super) async fn run(settings: &Settings, matches: &ArgMatches) -> Result<(), Exit> {
    let peer = PeerClient::find(settings, matches)?;
    let list: Value = peer.get("/api/requests").await?;
    let wrong =
        |e: serde_json::Error| Exit::new(ExitKind::Unreachable, format!("the peer's answer is not understood: {e}"));
    let Some(begins) = matches.get_one::<String>("id") else {
        if is_set(matches, "json") {
            return print_json(&list);
        }
        let RequestList { requests } = serde_json::from_value(list).map_err(wrong)?;
        rows(&requests).iter().for_each(|line| say!("{line}"));
        return Ok(());
    };
    let RequestList { requests } = serde_json::from_value(list).map_err(wrong)?;
    let id = chosen(&requests, begins)?;
    let trace: Trace = peer.get(&format!("/api/requests/{id}")).await?;
    if is_set(matches, "json") {
        return print_json(&trace);
    }
    lines(&trace).into_iter().chain(details(&trace)).for_each(|line| say!("{line}"));
    Ok(())
}

/// What `/api/requests` lists.
#[derive(Deserialize)]
struct RequestList {
    requests: Vec<Short>,
}

/// A request, in short.
#[derive(Deserialize)]
struct Short {
    request: RequestId,
    prompt_tokens: u32,
    new_tokens: u32,
    ttft: f64,
    total: f64,
    slowest: Option<Slowest>,
}

/// The one request whose id begins so.
fn chosen(requests: &[Short], begins: &str) -> Result<RequestId, Exit> {
    let all: Vec<RequestId> =
        requests.iter().map(|r| r.request).filter(|id| id.to_string().starts_with(begins)).collect();
    match all[..] {
        [one] => Ok(one),
        [] => {
            let what = format!("no request that this peer remembers begins with {begins:?}");
            Err(Exit::new(ExitKind::Request, format!("{what}; tsnode requests lists them, newest first")))
        }
        _ => Err(Exit::new(
            ExitKind::Usage,
            format!("{} requests begin with {begins:?}: give more of its id", all.len()),
        )),
    }
}

/// The list, newest first.
fn rows(requests: &[Short]) -> Vec<String> {
    if requests.is_empty() {
        return vec!["no request has ended at this peer yet".into()];
    }
    let row = |id: &str, prompt: &str, answer: &str, first: &str, all: &str, slowest: &str| {
        format!("{id:<36}  {prompt:>6}  {answer:>6}  {first:>7}  {all:>7}  {slowest}")
    };
    let mut lines = vec![row("REQUEST", "PROMPT", "ANSWER", "FIRST", "ALL", "SLOWEST")];
    lines.extend(requests.iter().map(|r| {
        row(
            &r.request.to_string(),
            &r.prompt_tokens.to_string(),
            &r.new_tokens.to_string(),
            &time(Seconds(r.ttft)),
            &time(Seconds(r.total)),
            r.slowest.as_ref().map_or("", |slowest| part(slowest.part)),
        )
    }));
    lines
}

/// What ran where in a request, in four lines.
pub(super) fn lines(trace: &Trace) -> Vec<String> {
    let p = trace.parts;
    let (mut prompt, mut answer) = (count(trace.prompt_tokens, "token"), count(trace.new_tokens, "token"));
    if trace.cached_tokens > 0 {
        prompt += &format!(" ({} cached)", trace.cached_tokens);
    }
    prompt += &format!(" in {}, waited {}", time(p.prefill), time(p.queue));
    answer += &format!(" in {}", time(p.decode));
    if let Some(rate) = speed(trace.new_tokens, p.decode) {
        answer += &format!(", {rate}");
    }
    if !trace.moves.is_empty() {
        answer += &format!("; {} cost {}", count(trace.moves.len() as u32, "move"), time(p.recovery));
    }
    let rows = [
        ("prefill", stages(trace, &trace.prefill_stages, trace.prefill), prompt),
        ("transfer", pairs(trace), handed_over(trace)),
        ("decode", stages(trace, &trace.decode_stages, trace.decode), answer),
    ];
    let peers = rows.iter().map(|(_, peers, _)| width(peers)).max().unwrap_or(0);
    let line = |(label, who, what): &(&str, String, String)| {
        let line = format!("{}{}  {what}", padded(label, LABELS), padded(who, peers));
        fitted(line.trim_end(), COLUMNS)
    };
    let slowest = trace.slowest.as_ref().map_or("nothing took time".into(), |slowest| why(trace, slowest));
    let slowest = fitted(&format!("{}{slowest}", padded("slowest", LABELS)), COLUMNS);
    rows.iter().map(line).chain([slowest]).collect()
}

/// What else is known of a request.
fn details(trace: &Trace) -> Vec<String> {
    let mut lines = vec![
        format!("{}{}", padded("request", LABELS), trace.request),
        format!(
            "{}first token after {}, all after {}",
            padded("times", LABELS),
            time(Seconds(trace.ttft)),
            time(Seconds(trace.total))
        ),
    ];
    let labelled = |label: &str, text: &str| wrapped(label, LABELS, &harmless(text));
    lines.extend(labelled("why", &trace.reason));
    for d in &trace.deliveries {
        let what = format!(
            "{} → {}: {}, packed in {}, on the way {}, unpacked in {}",
            name(trace, d.from),
            name(trace, d.to),
            bytes(d.bytes),
            time(d.pack),
            time(d.wire),
            time(d.unpack)
        );
        lines.extend(labelled("sent", &what));
    }
    for m in &trace.moves {
        let way = match m.way {
            Some(Resumption::Kept) => ", with KV that a prefill group had kept",
            Some(Resumption::Cached) => ", with what the other group had cached",
            Some(Resumption::Anew) => ", computed anew",
            None => "",
        };
        let at = time(Seconds(m.at));
        let what =
            format!("from {} after {at} and {}: {}{way}", name(trace, m.from), count(m.answered, "token"), m.reason);
        lines.extend(labelled("moved", &what));
    }
    lines
}

/// Tokens a second behind the first.
pub(super) fn speed(tokens: u32, took: Seconds) -> Option<String> {
    let rate = f64::from(tokens.checked_sub(1).filter(|n| *n > 0)?) / took.0;
    rate.is_finite().then(|| format!("{rate:.*} tokens/s", usize::from(rate < 10.0)))
}

pub(super) fn count(number: u32, what: &str) -> String {
    format!("{number} {what}{}", if number == 1 { "" } else { "s" })
}

fn name(trace: &Trace, peer: PeerId) -> String {
    harmless(&trace.name(peer))
}

/// Peers of a group in the order of its stages, as many as there is room for.
fn stages(trace: &Trace, stages: &[Stage], leader: PeerId) -> String {
    let mut peers: Vec<PeerId> = stages.iter().map(|stage| stage.peer).collect();
    peers.dedup();
    let names: Vec<String> = peers.iter().map(|peer| name(trace, *peer)).collect();
    chain(&names).unwrap_or_else(|| fitted(&name(trace, leader), PEERS))
}

/// Names with arrows between them: all, or the first, how many there are between, and the last; none of nobody.
fn chain(names: &[String]) -> Option<String> {
    let all = names.join(" → ");
    match names {
        [] => None,
        [one] => Some(fitted(one, PEERS)),
        _ if width(&all) <= PEERS => Some(all),
        [first, last] => Some(format!("{} → {}", fitted(first, PEERS / 2 - 2), fitted(last, PEERS / 2 - 2))),
        [first, between @ .., last] => {
            let each = PEERS / 2 - 7;
            Some(format!("{} → {} more → {}", fitted(first, each), between.len(), fitted(last, each)))
        }
    }
}

/// Between whom KV went: the slowest pair, and how many others.
fn pairs(trace: &Trace) -> String {
    let slowest = trace.deliveries.iter().max_by(|a, b| a.wire.0.total_cmp(&b.wire.0));
    let Some(slowest) = slowest else { return "none".into() };
    let pair = chain(&[name(trace, slowest.from), name(trace, slowest.to)]).unwrap_or_default();
    match trace.deliveries.len() - 1 {
        0 => pair,
        more => format!("{} + {more}", fitted(&pair, PEERS - 5)),
    }
}

fn handed_over(trace: &Trace) -> String {
    let Some(codec) = trace.kv_codec else { return harmless(&trace.reason) };
    let p = trace.parts;
    let codec = format!("{codec:?}").to_lowercase();
    let [pack, wire, unpack] = [p.pack, p.wire, p.unpack].map(|part| format!("{:.0}", part.0 * 1e3));
    let late = time(p.pack + p.wire + p.unpack);
    format!("{} {codec} in {late}: pack {pack}, wire {wire}, unpack {unpack}", bytes(trace.kv_bytes))
}

fn part(part: LatencyPart) -> &'static str {
    match part {
        LatencyPart::Queue => "waiting",
        LatencyPart::Prefill => "prefill",
        LatencyPart::Pack => "packing",
        LatencyPart::Wire => "wire",
        LatencyPart::Unpack => "unpack",
        LatencyPart::Decode => "decode",
        LatencyPart::Recovery => "move",
    }
}

/// The part that took longest, and what held it up.
fn why(trace: &Trace, slowest: &Slowest) -> String {
    let each = if slowest.part == LatencyPart::Decode { " a token" } else { "" };
    let who = |peer: &PeerId| fitted(&name(trace, *peer), PEERS / 2 - 2);
    let cause = match &slowest.cause {
        SlowCause::Turn { at } => format!("for pages or its turn at {}", who(at)),
        SlowCause::Link { from, to, latency } => format!("link {} → {}, {}{each}", who(from), who(to), time(*latency)),
        SlowCause::Layers { peer, layers, each: took } => {
            let took = took.map(|took| format!(", {}{each}", time(took))).unwrap_or_default();
            format!("layers {layers} on {}{took}", who(peer))
        }
        SlowCause::Busy { leader, step, expected } => {
            format!("{}{each} at {}, alone {}: busy", time(*step), who(leader), time(*expected))
        }
        SlowCause::Kv { from, to, bytes: sent, took } => match slowest.part {
            LatencyPart::Pack => format!("on {}, {} for {}", who(from), bytes(*sent), who(to)),
            LatencyPart::Unpack => format!("on {}, {} from {}", who(to), bytes(*sent), who(from)),
            _ => {
                let rate = *sent as f64 * 8e-6 / took.0.max(1e-9);
                format!("link {} → {}, {} at {rate:.0} Mbit/s", who(from), who(to), bytes(*sent))
            }
        },
        SlowCause::Lost { leader, reason } => format!("{} was lost: {}", who(leader), harmless(reason)),
    };
    let share = slowest.took.0 / trace.total.max(1e-9) * 100.0;
    format!("{} {share:.0} %: {cause}", part(slowest.part))
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;
    use std::collections::BTreeMap;
    use tsnode_coordinator::gateway::{LatencyBreakdown, Move};
    use tsnode_protocol::{KvCodec, LayerRange, ModelId, kv::Delivery};

    fn peer(n: u8) -> PeerId {
        PeerId([n; 32])
    }

    fn stage(n: u8) -> Stage {
        Stage { peer: peer(n), device: 0, layers: LayerRange { start: 0, end: 2 } }
    }

    fn delivery() -> Delivery {
        Delivery {
            from: peer(1),
            to: peer(3),
            bytes: 124_928,
            tiles: 4,
            streams: 1,
            pack: Seconds(0.004),
            pack_tail: Seconds(0.001),
            wire: Seconds(0.05),
            unpack: Seconds(0.003),
            unpack_tail: Seconds(0.002),
        }
    }

    pub fn trace(names: [&str; 4]) -> Trace {
        let cause = SlowCause::Link { from: peer(3), to: peer(4), latency: Seconds(0.04) };
        let peers: BTreeMap<PeerId, String> = (1..).map(peer).zip(names.map(String::from)).collect();
        Trace {
            request: RequestId([5; 16]),
            model: ModelId([1; 16]),
            prefill: peer(1),
            decode: peer(3),
            prefill_stages: vec![stage(1), stage(2)],
            decode_stages: vec![stage(3), stage(4)],
            reason: "elsewhere 40.0 ms with 124928 bytes of KV, here 90.0 ms".into(),
            predicted: None,
            prompt_tokens: 61,
            cached_tokens: 20,
            new_tokens: 41,
            codec: KvCodec::Int4,
            first_part: None,
            overflow: None,
            kv_codec: Some(KvCodec::Int4),
            kv_bytes: 124_928,
            ttft: 0.04,
            total: 3.652,
            alone: None,
            parts: LatencyBreakdown {
                queue: Seconds(0.002),
                prefill: Seconds(0.038),
                pack: Seconds(0.001),
                wire: Seconds(0.009),
                unpack: Seconds(0.002),
                decode: Seconds(3.6),
                recovery: Seconds(0.0),
            },
            deliveries: vec![delivery()],
            moves: vec![],
            slowest: Some(Slowest { part: LatencyPart::Decode, took: Seconds(3.6), cause }),
            peers,
        }
    }

    fn fits(lines: &[String]) {
        assert!(lines.iter().all(|line| width(line) <= COLUMNS), "{}", lines.join("\n"));
    }

    #[test]
    fn a_trace_is_four_aligned_lines_with_names_and_the_slowest_link() {
        let expected = "\
prefill    peer1 → peer2  61 tokens (20 cached) in 38 ms, waited 2.0 ms
transfer   peer1 → peer3  124.9 kB int4 in 12 ms: pack 1, wire 9, unpack 2
decode     peer3 → peer4  41 tokens in 3600 ms, 11 tokens/s
slowest    decode 99 %: link peer3 → peer4, 40 ms a token";
        let lines = lines(&trace(["peer1", "peer2", "peer3", "peer4"]));
        assert_eq!(lines.join("\n"), expected);
        fits(&lines);
    }

    #[test]
    fn wide_names_are_aligned_by_columns_and_long_ones_are_cut() {
        let lines_of = lines(&trace(["机器一号", "peer2", "客厅的旧电脑", "x"]));
        let expected = "\
prefill    机器一号 → peer2         61 tokens (20 cached) in 38 ms, waited 2.0…
transfer   机器一号 → 客厅的旧电脑  124.9 kB int4 in 12 ms: pack 1, wire 9, unp…
decode     客厅的旧电脑 → x         41 tokens in 3600 ms, 11 tokens/s
slowest    decode 99 %: link 客厅的旧电脑 → x, 40 ms a token";
        assert_eq!(lines_of.join("\n"), expected);
        fits(&lines_of);
        let long = "a-host-name-of-sixty-three-letters-that-some-provider-gave-to-it";
        fits(&lines(&trace([long; 4])));
        let escaping = lines(&trace(["\u{1b}[2J", "b\n", "c", "d"])).concat();
        assert!(!escaping.contains(char::is_control), "{escaping:?}");
    }

    #[test]
    fn long_pipelines_are_their_ends_and_how_many_are_between() {
        let names: Vec<String> = (1..=9).map(|n| format!("peer{n}")).collect();
        assert_eq!(chain(&names).unwrap(), "peer1 → 7 more → peer9");
        assert_eq!(chain(&names[..3]).unwrap(), "peer1 → peer2 → peer3");
        assert_eq!(chain(&[]), None);
    }

    #[test]
    fn one_peer_that_does_both_is_said_so_and_a_move_with_what_it_cost() {
        let moved =
            Move { from: peer(4), reason: "it is gone".into(), answered: 3, at: 0.2, way: Some(Resumption::Anew) };
        let alone = Trace {
            decode: peer(1),
            prefill_stages: vec![stage(1)],
            decode_stages: vec![stage(1)],
            reason: "one group does both".into(),
            cached_tokens: 0,
            prompt_tokens: 1,
            kv_codec: None,
            deliveries: vec![],
            slowest: Some(Slowest {
                part: LatencyPart::Recovery,
                took: Seconds(0.3),
                cause: SlowCause::Lost { leader: peer(4), reason: "it is gone".into() },
            }),
            moves: vec![moved],
            parts: LatencyBreakdown { recovery: Seconds(0.3), decode: Seconds(0.1), ..LatencyBreakdown::default() },
            total: 0.4,
            ..trace(["peer1", "peer2", "peer3", "peer4"])
        };
        let expected = "\
prefill    peer1  1 token in 0.0 ms, waited 0.0 ms
transfer   none   one group does both
decode     peer1  41 tokens in 100 ms, 400 tokens/s; 1 move cost 300 ms
slowest    move 75 %: peer4 was lost: it is gone";
        assert_eq!(lines(&alone).join("\n"), expected);
        let expected = "\
request    req-05050505050505050505050505050505
times      first token after 40 ms, all after 400 ms
why        one group does both
moved      from peer4 after 200 ms and 3 tokens: it is gone, computed anew";
        assert_eq!(details(&alone).join("\n"), expected);
    }

    #[test]
    fn every_cause_is_a_sentence_that_fits() {
        let wide = "客厅的旧电脑在窗边";
        let trace = trace([wide; 4]);
        let who = peer(1);
        let kv = || SlowCause::Kv { from: who, to: peer(3), bytes: 5_000_000, took: Seconds(0.4) };
        let layers = LayerRange { start: 0, end: 2 };
        for (part, cause, said) in [
            (LatencyPart::Queue, SlowCause::Turn { at: who }, "waiting 11 %: for pages or its turn at 客厅"),
            (LatencyPart::Prefill, SlowCause::Layers { peer: who, layers, each: None }, "%: layers 0..2 on 客厅"),
            (
                LatencyPart::Decode,
                SlowCause::Layers { peer: who, layers, each: Some(Seconds(0.04)) },
                ", 40 ms a token",
            ),
            (
                LatencyPart::Decode,
                SlowCause::Busy { leader: who, step: Seconds(0.2), expected: Seconds(0.04) },
                "%: 200 ms a token at 客厅",
            ),
            (LatencyPart::Pack, kv(), "packing 11 %: on 客厅"),
            (LatencyPart::Wire, kv(), "5.0 MB at 100 Mbit/s"),
            (LatencyPart::Unpack, kv(), "unpack 11 %: on 客厅"),
            (LatencyPart::Recovery, SlowCause::Lost { leader: who, reason: "x".repeat(200) }, "was lost: x"),
        ] {
            let slowest = Some(Slowest { part, took: Seconds(0.4), cause });
            let lines = lines(&Trace { slowest, ..trace.clone() });
            assert!(lines[3].contains(said), "{}", lines[3]);
            fits(&lines);
        }
    }

    #[test]
    fn the_list_keeps_to_the_columns_and_one_is_found_by_how_its_id_begins() {
        let short = |n: u8| Short {
            request: RequestId([n; 16]),
            prompt_tokens: 61,
            new_tokens: 40,
            ttft: 0.04,
            total: 12.34,
            slowest: trace(["a", "b", "c", "d"]).slowest,
        };
        let all = [short(0x51), short(0x52)];
        let expected = "\
REQUEST                               PROMPT  ANSWER    FIRST      ALL  SLOWEST
req-51515151515151515151515151515151      61      40    40 ms   12.3 s  decode
req-52525252525252525252525252525252      61      40    40 ms   12.3 s  decode";
        assert_eq!(rows(&all).join("\n"), expected);
        fits(&rows(&all));
        assert_eq!(chosen(&all, "req-52").unwrap(), all[1].request);
        assert_eq!(chosen(&all, "req-5").unwrap_err().kind, ExitKind::Usage);
        assert_eq!(chosen(&all, "req-6").unwrap_err().kind, ExitKind::Request);
        assert_eq!(rows(&[]).len(), 1);
    }
}
