//! Numbers with units: seconds, rates.

use bincode::{Decode, Encode};
use serde::{Deserialize, Serialize};

macro_rules! unit {
    ($(#[$doc:meta])* $name:ident, $suffix:literal) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, Default, PartialEq, PartialOrd, Encode, Decode, Serialize, Deserialize)]
        #[serde(transparent)]
        pub struct $name(pub f64);

        impl $name {
            /// Whether the number is finite and not negative: what any measurement must be.
            #[must_use]
            pub fn is_plausible(self) -> bool {
                self.0.is_finite() && self.0 >= 0.0
            }
        }

        impl std::fmt::Display for $name {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                write!(f, "{:.3e} {}", self.0, $suffix)
            }
        }
    };
}

unit!(
    /// A span of time in seconds.
    Seconds,
    "s"
);
unit!(
    /// A data rate in byte/s.
    BytesPerSecond,
    "B/s"
);
unit!(
    /// An arithmetic rate in FLOP/s; a multiply-add counts as two.
    FlopsPerSecond,
    "FLOP/s"
);

impl std::ops::Add for Seconds {
    type Output = Self;
    fn add(self, other: Self) -> Self {
        Self(self.0 + other.0)
    }
}

impl BytesPerSecond {
    /// Time to carry `bytes` at this rate; infinite at rate zero.
    #[must_use]
    pub fn time_for(self, bytes: u64) -> Seconds {
        Seconds(bytes as f64 / self.0)
    }
}

impl FlopsPerSecond {
    /// Time for `flops` operations at this rate; infinite at rate zero.
    #[must_use]
    pub fn time_for(self, flops: f64) -> Seconds {
        Seconds(flops / self.0)
    }
}
