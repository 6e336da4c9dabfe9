//! Plan flow 2: what members set for the swarm: taken in, said again, and set here.

use super::{Action, Control};
use std::sync::Arc;
use std::time::Duration;
use tsnode_protocol::{Advert, SettingKey, SettingValue, SwarmSetting};

/// How far ahead of this peer's clock a setting may be: clocks of honest peers are wrong, and one of next year would be the newest
/// for a year.
const AHEAD: Duration = Duration::from_secs(600);
/// Within what time this peer says again what is new to it: whoever set it may go.
const SOON: Duration = Duration::from_secs(1);

impl Control {
    /// An advert with no other settings than count here; what is new of them this peer says, too.
    pub(super) fn take_in_settings(&mut self, advert: Arc<Advert>, out: &mut Vec<Action>) -> Arc<Advert> {
        let latest = ms(self.unix_start + self.now + AHEAD);
        let counts = |setting: &SwarmSetting| self.config.takes_settings && setting.at <= latest;
        let advert = if advert.settings.iter().all(counts) {
            advert
        } else {
            let mut kept = (*advert).clone();
            kept.settings.retain(counts);
            kept.into()
        };
        if self.own.settings.take_in(&advert.settings) {
            self.advertise_within(SOON);
            out.push(Action::Settings(self.own.settings.said()));
        }
        advert
    }

    /// A member that is this peer's owner, or came to it, sets something for all.
    pub(super) fn set(&mut self, key: SettingKey, value: SettingValue, out: &mut Vec<Action>) {
        if !self.config.takes_settings {
            return;
        }
        let set = self.own.settings.next(key, value, self.config.me, self.common_time());
        self.own.settings.take_in(&[set]);
        self.adverts.changed(self.now);
        out.push(Action::Settings(self.own.settings.said()));
    }

    /// This peer's advert with what is set.
    pub(super) fn own_advert(&self) -> Option<Arc<Advert>> {
        let advert = self.own.advert.clone()?;
        let settings = self.own.settings.said();
        if settings == advert.settings {
            return Some(advert);
        }
        Some(Arc::new(Advert { settings, ..(*advert).clone() }))
    }

    /// Milliseconds since 1970; no later than the epoch that most members are in.
    fn common_time(&self) -> u64 {
        let own = ms(self.unix_start + self.now);
        let length = ms(self.config.epoch_length);
        let end = self.common_epoch.map(|epoch| epoch.0.saturating_add(1).saturating_mul(length));
        end.map_or(own, |end| own.min(end))
    }
}

fn ms(time: Duration) -> u64 {
    u64::try_from(time.as_millis()).unwrap_or(u64::MAX)
}
