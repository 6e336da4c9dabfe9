//! What members set for a whole swarm, as it follows from their adverts: of each thing the newest. Whoever has one view has one
//! answer, so that peers make and value plans, and route, alike.

use crate::scheduler::slo::{Slo, Target};
use std::collections::BTreeMap;
use tsnode_protocol::{
    Advert, BatchPolicy, ModelId, PeerId, PolicyChoice, RequestClass, RoutePolicy, SettingKey, SettingValue,
    SwarmSetting, Targets, limits,
};

/// The newest settings that are known.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct SwarmSettings(BTreeMap<SettingKey, SwarmSetting>);

impl SwarmSettings {
    /// Of all that these say.
    #[must_use]
    pub fn of<'a>(adverts: impl Iterator<Item = &'a Advert>) -> Self {
        let mut settings = Self::default();
        for advert in adverts {
            settings.take_in(&advert.settings);
        }
        settings
    }

    /// Takes in what is newer than what is known; whether there was any. Of more than may be said the oldest go.
    pub fn take_in(&mut self, heard: &[SwarmSetting]) -> bool {
        let mut changed = false;
        for setting in heard {
            if self.0.get(&setting.key).is_none_or(|known| setting.is_newer_than(known)) {
                changed |= self.0.insert(setting.key, *setting) != Some(*setting);
            }
        }
        while self.0.len() > limits::SETTINGS {
            let oldest = self.0.values().min_by_key(|s| (s.at, s.by)).map(|s| s.key);
            oldest.and_then(|key| self.0.remove(&key));
        }
        changed
    }

    /// All of them, as adverts say them.
    #[must_use]
    pub fn said(&self) -> Vec<SwarmSetting> {
        self.0.values().copied().collect()
    }

    /// This, set by a peer whose clock shows `unix_ms`: newer than what it knows of the same thing, whatever that clock shows.
    #[must_use]
    pub fn next(&self, key: SettingKey, value: SettingValue, by: PeerId, unix_ms: u64) -> SwarmSetting {
        let after = self.0.get(&key).map_or(0, |known| known.at.saturating_add(1));
        SwarmSetting { key, value, at: unix_ms.max(after), by }
    }

    /// Targets for these requests, and who set them: the model's own before those for all.
    #[must_use]
    pub fn targets(&self, model: ModelId, class: RequestClass) -> Option<(Targets, &SwarmSetting)> {
        [Some(model), None].into_iter().find_map(|model| {
            let setting = self.0.get(&SettingKey::Targets { model, class })?;
            match setting.value {
                SettingValue::Targets(targets) if !targets.is_empty() => Some((targets, setting)),
                _ => None,
            }
        })
    }

    /// How requests for a model are routed, and who set it.
    #[must_use]
    pub fn route(&self, model: ModelId) -> Option<(RoutePolicy, &SwarmSetting)> {
        [Some(model), None].into_iter().find_map(|model| {
            let setting = self.0.get(&SettingKey::Route { model })?;
            match setting.value {
                SettingValue::Route(Some(policy)) => Some((policy, setting)),
                _ => None,
            }
        })
    }

    /// How groups of a model form their steps, and who set it.
    #[must_use]
    pub fn batch(&self, model: ModelId) -> Option<(BatchPolicy, &SwarmSetting)> {
        [Some(model), None].into_iter().find_map(|model| {
            let setting = self.0.get(&SettingKey::Batch { model })?;
            match setting.value {
                SettingValue::Batch(Some(policy)) => Some((policy, setting)),
                _ => None,
            }
        })
    }

    /// The policy that requests for a model are routed by on a plan that has chosen this; nothing where members have set none.
    #[must_use]
    pub fn routed(&self, model: ModelId, chosen: &[PolicyChoice]) -> Option<RoutePolicy> {
        let (policy, _) = self.route(model)?;
        let of_plan = || PolicyChoice::of_routes(chosen, model).map_or(RoutePolicy::Live, |(_, policy)| policy);
        Some(if policy == RoutePolicy::Auto { of_plan() } else { policy })
    }

    /// The policy that groups of a model form their steps by under a plan that has chosen this.
    #[must_use]
    pub fn batched(&self, model: ModelId, chosen: &[PolicyChoice]) -> BatchPolicy {
        let of_plan = || PolicyChoice::of_batches(chosen, model).map(|(_, policy)| policy).unwrap_or_default();
        match self.batch(model) {
            Some((BatchPolicy::Auto, _)) => of_plan(),
            Some((policy, _)) => policy,
            None => BatchPolicy::default(),
        }
    }
}

/// As the scheduler has them.
#[must_use]
pub fn slo(targets: Targets) -> Slo {
    let target = |time: Option<_>| time.map_or(Target::None, Target::Seconds);
    Slo { ttft: target(targets.ttft), tpot: target(targets.tpot), e2e: target(targets.e2e) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sample;
    use tsnode_protocol::{ChosenPolicy, Seconds};

    const MODEL: ModelId = ModelId([1; 16]);

    fn set(model: Option<ModelId>, e2e: Option<f64>, at: u64, by: u8) -> SwarmSetting {
        let key = SettingKey::Targets { model, class: RequestClass::Interactive };
        let value = SettingValue::Targets(Targets { e2e: e2e.map(Seconds), ..Targets::default() });
        SwarmSetting { key, value, at, by: PeerId([by; 32]) }
    }

    fn e2e(all: &[SwarmSetting]) -> Option<f64> {
        let adverts: Vec<Advert> = all.iter().map(|s| Advert { settings: vec![*s], ..sample::gateway(0) }).collect();
        let settings = SwarmSettings::of(adverts.iter());
        settings.targets(MODEL, RequestClass::Interactive).and_then(|(targets, _)| targets.e2e).map(|s| s.0)
    }

    #[test]
    fn the_newest_counts_in_whatever_order_it_is_heard() {
        let (old, new, rival) = (set(None, Some(9.0), 5, 7), set(None, Some(2.0), 6, 1), set(None, Some(3.0), 6, 2));
        for all in [[old, new, rival], [rival, new, old], [new, rival, old]] {
            assert_eq!(e2e(&all), Some(3.0), "of two of one moment that of the greater name");
        }
        assert_eq!(e2e(&[old, set(None, None, 7, 1)]), None, "taken back");
        assert_eq!(e2e(&[]), None);
    }

    #[test]
    fn a_models_own_come_before_those_of_all() {
        let (all, own) = (set(None, Some(9.0), 8, 1), set(Some(MODEL), Some(2.0), 5, 1));
        assert_eq!(e2e(&[all, own]), Some(2.0));
        assert_eq!(e2e(&[all, set(Some(MODEL), None, 6, 1)]), Some(9.0), "taken back: those of all count again");
        assert_eq!(e2e(&[all, set(Some(ModelId([2; 16])), Some(1.0), 9, 1)]), Some(9.0));
    }

    #[test]
    fn what_is_left_to_measurement_is_as_the_plan_says_and_what_is_set_is_not() {
        let set = |policy| {
            let (key, value) = (SettingKey::Batch { model: None }, SettingValue::Batch(Some(policy)));
            let mut settings = SwarmSettings::default();
            settings.take_in(&[SwarmSetting { key, value, at: 1, by: PeerId([1; 32]) }]);
            settings
        };
        let policy = ChosenPolicy::Batch(BatchPolicy::Mixed);
        let chosen = [PolicyChoice { model: MODEL, policy, requests: 300, rate: 1.0, tried: vec![] }];
        let (auto, first) = (set(BatchPolicy::Auto), set(BatchPolicy::PrefillFirst));
        assert_eq!([&auto, &first].map(|s| s.batched(MODEL, &chosen)), [BatchPolicy::Mixed, BatchPolicy::PrefillFirst]);
        assert_eq!(auto.batched(MODEL, &[]), BatchPolicy::Chunked, "nothing was chosen yet");
        assert_eq!(SwarmSettings::default().batched(MODEL, &chosen), BatchPolicy::Chunked, "nobody asked for it");
        assert_eq!(auto.routed(MODEL, &chosen), None);
    }

    #[test]
    fn what_is_set_is_newer_than_what_was_known_and_the_oldest_go() {
        let mut settings = SwarmSettings::default();
        let late = set(None, Some(9.0), 1000, 9);
        settings.take_in(&[late]);
        let next = settings.next(late.key, late.value, PeerId([1; 32]), 10);
        assert!(next.is_newer_than(&late) && settings.take_in(&[next]) && !settings.take_in(&[late, next]));
        let many: Vec<_> = (0..200).map(|n| set(Some(ModelId([n; 16])), Some(1.0), n.into(), 1)).collect();
        settings.take_in(&many);
        let said = settings.said();
        assert!(SwarmSetting::check_all(&said).is_ok() && said.len() == limits::SETTINGS && said.contains(&next));
    }
}
