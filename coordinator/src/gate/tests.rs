//! Where splitting a prompt pays and where it does not, by links, queues and codecs.

use super::*;

fn llama3_8b() -> ModelShape {
    ModelShape {
        layers: 32,
        hidden: 4096,
        intermediate: 14336,
        heads: 32,
        kv_heads: 8,
        head_dim: 128,
        vocab: 128_256,
        context: 8192,
        layer_bytes: 436_224_000,
        embed_bytes: 1_050_673_152,
        head_bytes: 1_050_681_344,
        experts: None,
        whole: false,
        state_bytes: 0,
    }
}

fn case(mbit: f64) -> GateCase {
    let side = |flops| GateSide {
        cost: PromptCost::at_rate(&llama3_8b(), 32, FlopsPerSecond(flops)).into(),
        pending_tokens: 0,
        running: 0,
    };
    GateCase {
        shape: llama3_8b(),
        tokens: 4096,
        remote: side(50e12),
        remote_has: 0,
        local: side(20e12),
        local_has: 0,
        answered: 0,
        latency: Seconds(0.01),
        bandwidth: BytesPerSecond(mbit * 1e6 / 8.0),
        element_bytes: 2,
        packed: Codec::default(),
        raw: Codec::default(),
        pace: None,
    }
}

#[test]
fn kv_is_as_large_as_the_design_says() {
    assert_eq!(kv_bytes(&llama3_8b(), 4096, KvCodec::Raw, 2), 512 << 20);
    // Two operations a weight: 8 B parameters less the embeddings are 7 B.
    let flops = PromptCost::at_rate(&llama3_8b(), 32, FlopsPerSecond(1.0)).of(1, 0).0;
    assert!((flops / 2.0 / 6.98e9 - 1.0).abs() < 0.01, "{flops}");
}

#[test]
fn a_link_that_keeps_up_hides_all_but_the_last_layer() {
    let case = case(2000.0);
    let computed = case.remote.time(case.tokens, 0);
    let sending = KvTransferCost::of(&case, KvCodec::Int4);
    assert!(sending.wire.0 < computed.0);
    let (there, pace) = sending.best(computed);
    assert_eq!(pace, KvPace::Layers);
    let late = there - computed - sending.pack - sending.latency;
    assert!(late.0 < (sending.wire + sending.unpack).0 / 30.0, "{late:?}");
    assert!(sending.whole(computed).0 > there.0 + sending.wire.0 * 0.5);
}

#[test]
fn a_short_prompt_leaves_in_one_piece() {
    let short = GateCase { tokens: 1, ..case(10_000.0) };
    assert_eq!(weigh(&short, KvChoice::Int4).pace, KvPace::Whole);
    assert_eq!(weigh(&case(1000.0), KvChoice::Int4).pace, KvPace::Layers);
}

#[test]
fn a_slow_codec_is_left_out_where_the_link_can_do_without() {
    let mut case = case(2000.0);
    assert_eq!(weigh(&case, KvChoice::Auto).codec, KvCodec::Int4);
    case.packed.unpack = Some(BytesPerSecond(1e8));
    assert_eq!(weigh(&case, KvChoice::Auto).codec, KvCodec::Raw);
}

#[test]
fn what_the_owner_says_of_the_pace_is_counted_with() {
    // A wire that carries all of it while the prompt is computed, and half of it while that is packed.
    let case = case(8000.0);
    let told = |pace| weigh(&GateCase { pace: Some(pace), ..case }, KvChoice::Auto);
    let (layers, whole) = (told(KvPace::Layers), told(KvPace::Whole));
    assert_eq!([layers.pace, whole.pace], [KvPace::Layers, KvPace::Whole]);
    assert_eq!([layers.codec, whole.codec], [KvCodec::Raw, KvCodec::Int4], "{layers:?} {whole:?}");
    assert!(whole.remote.0 > layers.remote.0);
    assert_eq!(weigh(&case, KvChoice::Auto).remote, layers.remote);
}

#[test]
fn what_is_there_already_is_not_computed_again() {
    let cost = PromptCost { fixed: 1.0, token: 0.1, square: 0.01 };
    assert!((cost.of(100, 0).0 - (1.0 + 10.0 + 100.0)).abs() < 1e-9);
    assert!((cost.of(40, 60).0 - (1.0 + 4.0 + 100.0 - 36.0)).abs() < 1e-9);
    let side = GateSide { cost: cost.into(), pending_tokens: 10, running: 0 };
    assert!((side.time(100, 60).0 - (cost.of(40, 60).0 + 1.0)).abs() < 1e-9);
    assert!((side.time(100, 100).0 - (cost.of(1, 99).0 + 1.0)).abs() < 1e-9, "the last token's logits are wanted");
}

#[test]
fn a_slow_link_does_not_pay_and_a_fast_one_does() {
    assert!(!weigh(&case(100.0), KvChoice::Auto).splits());
    assert!(weigh(&case(10_000.0), KvChoice::Auto).splits());
}

#[test]
fn a_busy_decode_side_makes_it_pay_sooner() {
    let mut busy = case(300.0);
    assert!(!weigh(&busy, KvChoice::Int4).splits());
    busy.local.running = 4;
    assert!(weigh(&busy, KvChoice::Int4).splits());
}

#[test]
fn what_either_side_has_decides_where_the_rest_is_computed() {
    let fast = case(10_000.0);
    assert!(weigh(&fast, KvChoice::Auto).splits());
    let cached = GateCase { local_has: 4000, ..fast };
    assert!(!weigh(&cached, KvChoice::Auto).splits());
    assert!(weigh(&cached, KvChoice::Auto).to_string().ends_with("ms, 4000 tokens being there"));
    // A device slower than the one that decodes is of use for what it has.
    let cost = PromptCost::at_rate(&llama3_8b(), 32, FlopsPerSecond(10e12));
    let slow = GateCase { remote: GateSide { cost: cost.into(), ..fast.remote }, ..case(1000.0) };
    assert!(!weigh(&slow, KvChoice::Auto).splits());
    assert!(weigh(&GateCase { remote_has: 4096, ..slow }, KvChoice::Auto).splits());
}

#[test]
fn an_answer_is_computed_anew_on_both_ways() {
    let [before, after] = [0, 1000].map(|answered| weigh(&GateCase { answered, ..case(1000.0) }, KvChoice::Int4));
    let more = case(1000.0).local.cost.of(1000, 4096).0;
    assert!((after.remote.0 - before.remote.0 - more).abs() < 1e-9);
    assert!((after.local.0 - before.local.0 - more).abs() < 1e-9);
    // It may be there as well: whoever decoded it first keeps it.
    let all = weigh(&GateCase { answered: 1000, local_has: 5096, ..case(1000.0) }, KvChoice::Int4);
    assert!(all.local.0 < 0.01 * before.local.0, "{all}");
}

/// One prompt, asked for while links, queues, caches and the codec's own speed are what they happen to be.
#[test]
fn a_fixed_codec_is_what_kv_goes_through_whatever_the_gate_sees() {
    let rates = [None, Some(BytesPerSecond(1e8)), Some(BytesPerSecond(1e11))];
    let mbits = [1.0, 100.0, 2000.0, 10_000.0, 400_000.0];
    let seen = mbits.into_iter().flat_map(|mbit| rates.map(|unpack| (mbit, unpack)));
    let cases = seen.flat_map(|(mbit, unpack)| {
        [(0, 0), (4, 0), (0, 4000)].map(|(running, local_has)| GateCase {
            local: GateSide { running, ..case(mbit).local },
            local_has,
            packed: Codec { pack: None, unpack },
            ..case(mbit)
        })
    });
    let cases: Vec<GateCase> = cases.collect();
    let went_through = |case: &GateCase, fixed: Option<KvCodec>| {
        let verdict = weigh(case, fixed.map_or(KvChoice::Auto, KvChoice::from));
        kv_codec(fixed.map(Into::into), verdict.splits().then(|| verdict.codec.into())).codec
    };
    let all = |fixed| cases.iter().map(|case| went_through(case, fixed)).collect::<Vec<_>>();
    for codec in [KvCodec::Raw, KvCodec::Int3, KvCodec::Int4, KvCodec::Int8] {
        assert!(all(Some(codec)).iter().all(|gone| *gone == codec), "{codec:?}");
    }
    // Where nobody fixes it, the same prompt goes now this way and now that.
    let free = all(None);
    assert!(free.contains(&KvCodec::Raw) && free.contains(&KvCodec::Int4), "{free:?}");
    // Sent by all means it still does.
    let sent: Vec<KvCodec> = cases.iter().map(|case| weigh(case, KvChoice::Auto).codec).collect();
    assert!(sent.contains(&KvCodec::Raw) && sent.contains(&KvCodec::Int4), "{sent:?}");
}

#[test]
fn packing_is_for_links_slower_than_it() {
    assert_eq!(weigh(&case(1000.0), KvChoice::Auto).codec, KvCodec::Int4);
    assert_eq!(weigh(&case(100_000.0), KvChoice::Auto).codec, KvCodec::Raw);
    assert_eq!(weigh(&case(100_000.0), KvChoice::Int4).codec, KvCodec::Int4);
}
