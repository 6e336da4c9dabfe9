//! Whether a machine lends itself now: what its owner wants, and the hours they set.

use serde::{Deserialize, Serialize};
use std::fmt;
use std::str::FromStr;

/// Minutes of a day.
const DAY: u16 = 24 * 60;

/// Whether a peer lends its devices, and if not why.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Lending {
    /// It lends what its owner allows.
    #[default]
    Lends,
    /// Its owner wants them back for now.
    Paused,
    /// It is not the time of day.
    OutsideHours,
    /// It was told no model, and the swarm serves another than the one inside the program.
    OtherModel,
}

impl Lending {
    /// At `minute` of the owner's day, who has `paused` the peer or not.
    #[must_use]
    pub fn at(minute: u16, paused: bool, hours: Option<Hours>) -> Self {
        match hours {
            _ if paused => Self::Paused,
            Some(hours) if !hours.contain(minute) => Self::OutsideHours,
            _ => Self::Lends,
        }
    }
}

impl fmt::Display for Lending {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Lends => "lends",
            Self::Paused => "paused by its owner until tsnode resume",
            Self::OutsideHours => "it is outside its hours, which tsnode limits changes",
            Self::OtherModel => "this swarm serves another model: tsnode join --model PATH lends this machine to it",
        })
    }
}

/// The part of every day in which a machine is lent, as `22:00-07:00`: from the first minute to before the last.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Hours {
    from: u16,
    to: u16,
}

impl Hours {
    /// The minute of the day at which lending begins.
    #[must_use]
    pub fn opens(self) -> u16 {
        self.from
    }

    /// Whether a minute of the day is one of them.
    #[must_use]
    pub fn contain(self, minute: u16) -> bool {
        if self.from < self.to {
            (self.from..self.to).contains(&minute)
        } else {
            minute >= self.from || minute < self.to
        }
    }
}

impl fmt::Display for Hours {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [from, to] = [self.from, self.to].map(|minute| format!("{:02}:{:02}", minute / 60, minute % 60));
        write!(f, "{from}-{to}")
    }
}

/// Text that is no part of a day.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("write hours as 22:00-07:00, two different times of day")]
pub struct NoHours;

impl FromStr for Hours {
    type Err = NoHours;

    fn from_str(text: &str) -> Result<Self, NoHours> {
        let (from, to) = text.split_once('-').ok_or(NoHours)?;
        let hours = Self { from: minute(from)?, to: minute(to)? };
        if hours.from == hours.to { Err(NoHours) } else { Ok(hours) }
    }
}

fn minute(text: &str) -> Result<u16, NoHours> {
    let (hour, minute) = text.trim().split_once(':').ok_or(NoHours)?;
    let number = |text: &str| text.parse::<u16>().map_err(|_| NoHours);
    let (hour, minute) = (number(hour)?, number(minute)?);
    // A day may end at 24:00, which is when the next begins.
    if hour <= 24 && minute < 60 && hour * 60 + minute <= DAY { Ok((hour * 60 + minute) % DAY) } else { Err(NoHours) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nights_go_on_past_midnight() {
        let night: Hours = "22:00-07:30".parse().unwrap();
        let lent = |hour: u16, minute: u16| night.contain(hour * 60 + minute);
        assert!(lent(22, 0) && lent(23, 59) && lent(0, 0) && lent(7, 29));
        assert_eq!(night.to_string(), "22:00-07:30");
        assert!(!lent(7, 30) && !lent(12, 0) && !lent(21, 59));
        let evening: Hours = "18:00-24:00".parse().unwrap();
        assert!(evening.contain(18 * 60) && evening.contain(DAY - 1) && !evening.contain(0));
    }

    #[test]
    fn what_is_no_part_of_a_day_is_refused() {
        for wrong in ["", "22:00", "22-7", "25:00-07:00", "22:60-07:00", "07:00-07:00", "24:01-03:00", "a:b-c:d"] {
            assert_eq!(wrong.parse::<Hours>(), Err(NoHours), "{wrong}");
        }
    }

    #[test]
    fn an_owner_who_pauses_is_obeyed_at_any_hour() {
        let hours = Some("08:00-12:00".parse().unwrap());
        assert_eq!(Lending::at(9 * 60, false, hours), Lending::Lends);
        assert_eq!(Lending::at(13 * 60, false, hours), Lending::OutsideHours);
        assert_eq!(Lending::at(9 * 60, true, hours), Lending::Paused);
        assert_eq!(Lending::at(9 * 60, false, None), Lending::Lends);
    }
}
