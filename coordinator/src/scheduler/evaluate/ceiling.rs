//! How loaded groups may be where a plan is valued: in steps for pairs, and the part of these that is used.

use super::{
    super::pair::{LOAD_STEP, MOST_LOAD, load},
    HEADROOM, PlanRates,
};

/// The most that groups are loaded.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Ceiling {
    /// At which pairs are valued, in steps.
    pub prefill: u8,
    pub decode: u8,
    /// Part of what the steps allow that groups may use.
    prefill_part: f64,
    decode_part: f64,
}

impl Ceiling {
    pub fn steps((prefill, decode): (u8, u8), by: i8) -> Self {
        let step = |low: u8| low.saturating_add_signed(by).clamp(1, MOST_LOAD);
        Self { prefill: step(prefill), decode: step(decode), prefill_part: 1.0, decode_part: 1.0 }
    }

    /// These steps with no more room than the rate needs, so that every group of a phase is loaded alike.
    pub fn alike(self, rate: f64, rates: &PlanRates) -> Self {
        let part = |need: f64, have: f64| if have > 0.0 { (need / have).min(1.0) } else { 1.0 };
        let splits = if rates.decode > 0.0 { rates.prefill } else { 0.0 };
        let prefill_part = part(rate, load(self.prefill) * (splits + rates.mixed));
        // What comes out of prefill groups, which may be less than the rate.
        let to_decode = prefill_part * load(self.prefill) * splits;
        Self { prefill_part, decode_part: part(to_decode, load(self.decode) * rates.decode), ..self }
    }

    /// The same with decode groups valued at what comes to them, which is less than their ceiling where prefill groups
    /// cannot carry the rate: at a high load that none of them will have, like groups would seem to differ.
    pub fn eased(self) -> Self {
        let need = self.decode_load();
        let decode = ((need / LOAD_STEP - 1e-9).ceil().max(1.0) as u8).min(self.decode);
        Self { decode, decode_part: need / load(decode), ..self }
    }

    pub fn prefill_load(&self) -> f64 {
        self.prefill_part * load(self.prefill)
    }

    pub fn decode_load(&self) -> f64 {
        self.decode_part * load(self.decode)
    }

    pub fn headroom(&self) -> f64 {
        HEADROOM * (1.0 - 0.5 * (self.prefill_load() + self.decode_load()))
    }
}

/// The step that a load is at or below; the highest planned, if it is above that.
pub(super) fn step(load: f64) -> u8 {
    ((load / LOAD_STEP - 1e-9).ceil().max(1.0) as u8).min(MOST_LOAD)
}

/// The lowest ceilings, in steps, at which the groups carry the rate; the highest there are, if they do not.
pub(super) fn lowest(rate: f64, rates: &PlanRates) -> (u8, u8) {
    let splits = rates.prefill > 0.0 && rates.decode > 0.0;
    for prefill in 1..=MOST_LOAD {
        let split = rate - load(prefill) * rates.mixed;
        if split <= 0.0 {
            return (prefill, 1);
        }
        if !splits || load(prefill) * rates.prefill < split {
            continue;
        }
        let decode = (split / rates.decode / LOAD_STEP - 1e-9).ceil();
        if decode <= f64::from(MOST_LOAD) {
            return (prefill, (decode as u8).max(1));
        }
    }
    (MOST_LOAD, MOST_LOAD)
}
