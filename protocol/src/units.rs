//! Numbers with units: times, sizes, rates, and what they make when multiplied and divided.

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

            /// Whether the number is neither infinite nor NaN.
            #[must_use]
            pub fn is_finite(self) -> bool {
                self.0.is_finite()
            }

            /// The larger of two.
            #[must_use]
            pub fn max(self, other: Self) -> Self {
                Self(self.0.max(other.0))
            }

            /// The smaller of two.
            #[must_use]
            pub fn min(self, other: Self) -> Self {
                Self(self.0.min(other.0))
            }
        }

        impl std::ops::Add for $name {
            type Output = Self;
            fn add(self, other: Self) -> Self {
                Self(self.0 + other.0)
            }
        }

        impl std::ops::AddAssign for $name {
            fn add_assign(&mut self, other: Self) {
                self.0 += other.0;
            }
        }

        impl std::ops::SubAssign for $name {
            fn sub_assign(&mut self, other: Self) {
                self.0 -= other.0;
            }
        }

        impl std::ops::Sub for $name {
            type Output = Self;
            fn sub(self, other: Self) -> Self {
                Self(self.0 - other.0)
            }
        }

        impl std::ops::Mul<f64> for $name {
            type Output = Self;
            fn mul(self, factor: f64) -> Self {
                Self(self.0 * factor)
            }
        }

        impl std::ops::Div<f64> for $name {
            type Output = Self;
            fn div(self, divisor: f64) -> Self {
                Self(self.0 / divisor)
            }
        }

        impl std::ops::Div for $name {
            type Output = f64;
            fn div(self, other: Self) -> f64 {
                self.0 / other.0
            }
        }

        impl std::iter::Sum for $name {
            fn sum<I: Iterator<Item = Self>>(all: I) -> Self {
                Self(all.map(|x| x.0).sum())
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

unit!(
    /// A size in bytes; a fraction where it is an average or an estimate.
    Bytes,
    "B"
);
unit!(
    /// A number of tokens; a fraction where it is an average.
    Tokens,
    "tokens"
);
unit!(
    /// Arithmetic operations; a multiply-add counts as two.
    Flops,
    "FLOP"
);
unit!(
    /// Time each token adds (s/token).
    SecondsPerToken,
    "s/token"
);
unit!(
    /// Time each pair of tokens adds (s/token²).
    SecondsPerSquareToken,
    "s/token²"
);
unit!(
    /// Memory each token takes (B/token).
    BytesPerToken,
    "B/token"
);

macro_rules! product {
    ($a:ident * $b:ident = $c:ident) => {
        impl std::ops::Mul<$b> for $a {
            type Output = $c;
            fn mul(self, other: $b) -> $c {
                $c(self.0 * other.0)
            }
        }
    };
}

macro_rules! quotient {
    ($a:ident / $b:ident = $c:ident) => {
        impl std::ops::Div<$b> for $a {
            type Output = $c;
            fn div(self, other: $b) -> $c {
                $c(self.0 / other.0)
            }
        }
    };
}

product!(SecondsPerToken * Tokens = Seconds);
product!(SecondsPerSquareToken * Tokens = SecondsPerToken);
product!(BytesPerToken * Tokens = Bytes);
quotient!(Bytes / BytesPerSecond = Seconds);
quotient!(BytesPerToken / BytesPerSecond = SecondsPerToken);
quotient!(Flops / FlopsPerSecond = Seconds);
quotient!(Bytes / BytesPerToken = Tokens);

impl Seconds {
    /// This much for each token.
    #[must_use]
    pub fn per_token(self) -> SecondsPerToken {
        SecondsPerToken(self.0)
    }
}

impl SecondsPerToken {
    /// This much for each token of each token.
    #[must_use]
    pub fn per_token(self) -> SecondsPerSquareToken {
        SecondsPerSquareToken(self.0)
    }
}

impl Bytes {
    /// This much for each token.
    #[must_use]
    pub fn per_token(self) -> BytesPerToken {
        BytesPerToken(self.0)
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
