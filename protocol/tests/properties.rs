//! What holds for every invite, plan, envelope and tile, not only for those somebody thought of.

#![expect(clippy::unwrap_used, reason = "what cannot be read fails the test")]

use ed25519_dalek::SigningKey;
use proptest::{collection::vec, option, prelude::*, sample::Index};
use tsnode_protocol::{
    Epoch, Gossip, Group, GroupId, GroupLoad, Heartbeat, Invite, InviteId, LayerRange, Load, ModelId, PeerId, Phase,
    Plan, PlanId, Quickest, Route, Seconds, Secret, SeenSpeed, Signed, Stage, StepSize, SwarmId, Term, Ticket,
    TileHeader, TimedStep, codec, limits,
};

fn bytes<const N: usize>() -> impl Strategy<Value = [u8; N]> {
    vec(any::<u8>(), N).prop_map(|bytes| bytes.try_into().unwrap())
}

fn invite() -> impl Strategy<Value = Invite> {
    let address = "[a-z0-9/.:é]{0,200}".prop_filter("too long", |text| text.len() <= limits::TEXT_BYTES);
    let ticket = (bytes(), bytes(), any::<u64>());
    let ticket = ticket.prop_map(|(id, secret, expires)| Ticket { id: InviteId(id), secret: Secret(secret), expires });
    (bytes(), option::of(ticket), vec(address, 0..=limits::ADDRESSES)).prop_map(|(swarm, ticket, addresses)| Invite {
        swarm: SwarmId(swarm),
        ticket,
        addresses,
    })
}

/// Groups whose stages cover a model of as many layers as come together.
fn group() -> impl Strategy<Value = Group> {
    let stage = (bytes(), any::<u16>(), 1..40_u32);
    let phase = prop_oneof![Just(Phase::Prefill), Just(Phase::Decode), Just(Phase::Mixed)];
    (bytes(), phase, vec(stage, 1..8)).prop_map(|(model, phase, stages)| {
        let mut start = 0;
        let stage = |(peer, device, layers)| {
            let range = LayerRange { start, end: start + layers };
            start = range.end;
            Stage { peer: PeerId(peer), device, layers: range }
        };
        let stages = stages.into_iter().map(stage).collect();
        Group::new(ModelId(model), phase, stages)
    })
}

/// Plans as a coordinator may make them: each group prefills for itself.
fn plan() -> impl Strategy<Value = Plan> {
    let groups = vec((group(), 0.0..=1.0_f64), 0..6);
    (any::<u64>(), any::<u32>(), option::of(bytes()), groups, ".{0,80}").prop_map(
        |(epoch, term, parent, groups, reason)| {
            let route = |(group, share): &(Group, f64)| Route { prefill: group.id, decode: group.id, share: *share };
            Plan {
                epoch: Epoch(epoch),
                term: Term(term),
                parent: parent.map(PlanId),
                routes: groups.iter().map(route).collect(),
                groups: groups.into_iter().map(|(group, _)| group).collect(),
                chosen: vec![],
                reason,
            }
        },
    )
}

fn heartbeat() -> impl Strategy<Value = Gossip> {
    let size = (any::<[u32; 2]>(), any::<[u64; 2]>()).prop_map(|([prompts, answers], [pairs, context])| StepSize {
        prompts,
        pairs,
        answers,
        context,
    });
    let timed =
        || option::of((0.0..1e6, size.clone()).prop_map(|(took, size)| TimedStep { took: Seconds(took), size }));
    let quickest = (timed(), timed()).prop_map(|(prompts, answers)| Quickest { prompts, answers });
    let load = (any::<[u32; 5]>(), option::of(0.0..1e9), quickest).prop_map(
        |([running, waiting, pending_tokens, free_pages, total_pages], step, quickest)| Load {
            running,
            waiting,
            pending_tokens,
            free_pages,
            total_pages,
            step: step.map(Seconds),
            chosen: step.map(|step| step.min(1024.0)),
            quickest,
        },
    );
    (any::<u64>(), any::<u32>(), vec((bytes(), load.clone()), 0..20), load, any::<bool>()).prop_map(
        |(epoch, term, ready, load, leaving)| {
            let clock = Epoch(epoch);
            let cut_off = vec![PeerId([leaving.into(); 32])];
            let ready = ready.into_iter().map(|(id, load)| GroupLoad { group: GroupId(id), load }).collect();
            Gossip::Heartbeat(Heartbeat {
                clock,
                epoch: Epoch(epoch),
                term: Term(term),
                plan: None,
                ready,
                load,
                leaving,
                cut_off,
                seen_speeds: vec![SeenSpeed { group: GroupId([2; 8]), phase: Phase::Prefill, doublings: term as u8 }],
            })
        },
    )
}

/// One rule of a plan, broken.
fn broken(plan: &Plan, which: u8, at: Index) -> Plan {
    let mut plan = plan.clone();
    let place = at.index(plan.groups.len());
    match which % 6 {
        0 => plan.groups.push(plan.groups[place].clone()),
        1 => plan.groups[place].id.0[0] ^= 1,
        2 => plan.groups[place].stages[0].layers.start += 1,
        3 => plan.routes[place].share = f64::NAN,
        4 => plan.routes[place].share = 1.0 + f64::EPSILON,
        _ => plan.reason = "x".repeat(4 * limits::TEXT_BYTES + 1),
    }
    plan
}

proptest! {
    #[test]
    fn an_invite_is_read_as_it_was_written_and_no_slip_is_overlooked(
        invite in invite(), at in any::<Index>(), slip in any::<Index>(),
    ) {
        let text = invite.to_string();
        prop_assert_eq!(text.parse(), Ok(invite.clone()));
        let mut slipped = text.clone().into_bytes();
        let at = at.index(slipped.len());
        slipped[at] = *slip.get(b"abcdefghijklmnopqrstuvwxyz234567");
        let slipped = String::from_utf8(slipped).unwrap();
        prop_assert_eq!(slipped.parse::<Invite>().is_ok(), slipped == text, "{} read as {}", text, slipped);
        let more = Invite { addresses: vec!["a".into(); limits::ADDRESSES + 1], ..invite.clone() };
        prop_assert!(more.to_string().parse::<Invite>().is_err());
        let longer = Invite { addresses: vec!["a".repeat(limits::TEXT_BYTES + 1)], ..invite };
        prop_assert!(longer.to_string().parse::<Invite>().is_err());
    }

    #[test]
    fn a_plan_is_read_as_it_was_written_and_no_broken_rule_is_overlooked(
        plan in plan(), which: u8, at in any::<Index>(),
    ) {
        let bytes = codec::encode(&plan);
        let read = codec::decode::<Plan, { limits::GOSSIP_BYTES }>(&bytes).unwrap();
        prop_assert_eq!((&read, read.id(), read.check()), (&plan, plan.id(), Ok(())));
        if !plan.groups.is_empty() {
            let broken = broken(&plan, which, at);
            prop_assert!(broken.check().is_err(), "{:?}", broken);
            prop_assert!(which % 6 == 3 || broken.id() != plan.id());
        }
    }

    #[test]
    fn an_envelope_holds_for_its_bytes_and_its_swarm(
        message in heartbeat(), key: [u8; 32], sequence: u64, swarm in bytes(), bit in any::<Index>(), other in bytes(),
    ) {
        let (key, swarm, other) = (SigningKey::from_bytes(&key), SwarmId(swarm), SwarmId(other));
        let sealed = Signed::seal(&key, swarm, sequence, &message).to_bytes();
        let open = |bytes: &[u8], swarm| Signed::<Gossip>::from_bytes(bytes).ok().and_then(|s| s.verify(swarm).ok());
        let read = open(&sealed, swarm).unwrap();
        prop_assert_eq!((read.message(), read.sequence(), read.signer().0), (&message, sequence, key.verifying_key().to_bytes()));
        prop_assert_eq!(read.into_parts().1.to_bytes(), sealed.clone());
        let mut bent = sealed.clone();
        let bit = bit.index(8 * bent.len());
        bent[bit / 8] ^= 1 << (bit % 8);
        prop_assert!(open(&bent, swarm).is_none(), "bit {} went unnoticed", bit);
        prop_assert_eq!(open(&sealed, other).is_some(), other == swarm);
    }

    #[test]
    fn a_tile_that_passes_is_one_that_can_be(
        layer in 0..2 * limits::LAYERS, heads in (0..1100_u32, 0..1100_u32),
        tokens in (0..2 * limits::SEQUENCE_TOKENS, 0..2 * limits::SEQUENCE_TOKENS), bytes in 0..2 * limits::TILE_BYTES as u32,
    ) {
        let tile = TileHeader {
            layer, head_start: heads.0, head_end: heads.1, token_start: tokens.0, token_end: tokens.1, bytes,
        };
        let can_be = layer < limits::LAYERS
            && heads.0 < heads.1 && heads.1 <= 1024
            && tokens.0 < tokens.1 && tokens.1 <= limits::SEQUENCE_TOKENS
            && bytes as usize <= limits::TILE_BYTES;
        prop_assert_eq!(tile.check().is_ok(), can_be);
        prop_assert_eq!(codec::decode::<TileHeader, 64>(&codec::encode(&tile)), Ok(tile));
    }
}
