//! Rotary position embedding, in the two forms checkpoints are stored for.

use serde::{Deserialize, Serialize};

/// Which channels of a head turn together.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum RopePairs {
    /// Channel `i` with `i + d/2`: Hugging Face's checkpoints.
    #[default]
    Halves,
    /// Channel `2i` with `2i + 1`: Llama in GGUF files.
    Neighbours,
}

/// How frequencies are stretched beyond the context a model was first trained on.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum RopeScaling {
    /// Not at all.
    None,
    /// All frequencies divided by `factor`.
    Linear {
        /// Stretch.
        factor: f32,
    },
    /// Llama 3: low frequencies divided by `factor`, high ones kept, a smooth passage between.
    Llama3 {
        /// Stretch of the low frequencies.
        factor: f32,
        /// Wavelengths above `original / low` are stretched fully.
        low: f32,
        /// Wavelengths below `original / high` are kept.
        high: f32,
        /// Context of the first training.
        original: f32,
    },
    /// YaRN (Peng et al. 2023): frequencies from number `kept` on are divided more and more, those from `stretched` on by
    /// `factor`; sines and cosines made larger.
    Yarn {
        /// Stretch of the low frequencies.
        factor: f32,
        /// Number of the last frequency that is kept, which may lie between two.
        kept: f32,
        /// Number of the first that is stretched fully.
        stretched: f32,
        /// What sines and cosines are multiplied by.
        amplitude: f32,
    },
    /// Gemma 4: the first frequencies divided by `factor`, the others 0, so that their channels stay as they are.
    Proportional {
        /// How many turn.
        turning: usize,
        /// Stretch.
        factor: f32,
    },
    /// LongRoPE (Phi-3): every frequency divided by its own factor, sines and cosines made larger.
    Long {
        /// A factor for each frequency: those for sequences no longer than the first training's, where contexts end, or, for
        /// all sequences, those that longer ones need from their first token on.
        factors: Vec<f32>,
        /// What sines and cosines are multiplied by.
        amplitude: f32,
    },
}

/// The angles' frequencies of one model.
#[derive(Clone, Debug)]
pub struct Rope {
    frequencies: Vec<f32>,
    amplitude: f32,
}

impl Rope {
    /// For heads of `dim` channels and base `theta`.
    #[must_use]
    pub fn new(dim: usize, theta: f32, scaling: &RopeScaling) -> Self {
        let base = |i: usize| 1.0 / libm::powf(theta, (2 * i) as f32 / dim as f32);
        let amplitude = match scaling {
            RopeScaling::Long { amplitude, .. } | RopeScaling::Yarn { amplitude, .. } => *amplitude,
            RopeScaling::None
            | RopeScaling::Linear { .. }
            | RopeScaling::Llama3 { .. }
            | RopeScaling::Proportional { .. } => 1.0,
        };
        Self { frequencies: (0..dim / 2).map(|i| scale(base(i), i, scaling)).collect(), amplitude }
    }

    /// For heads of `dim` channels that stay as they are, wherever they are.
    #[must_use]
    pub fn still(dim: usize) -> Self {
        Self { frequencies: vec![0.0; dim / 2], amplitude: 1.0 }
    }

    /// The same, each frequency divided by its factor.
    #[must_use]
    pub fn divided(mut self, factors: &[f32]) -> Self {
        for (frequency, factor) in self.frequencies.iter_mut().zip(factors) {
            *frequency /= factor;
        }
        self
    }

    /// Radians a position, and what sines and cosines are multiplied by.
    pub(crate) fn frequencies(&self) -> (&[f32], f32) {
        (&self.frequencies, self.amplitude)
    }

    /// Cosines and sines at `position`, each `dim / 2` numbers.
    pub fn angles(&self, position: u32, cos: &mut [f32], sin: &mut [f32]) {
        for ((f, cos), sin) in self.frequencies.iter().zip(cos).zip(sin) {
            let angle = position as f32 * f;
            *cos = libm::cosf(angle) * self.amplitude;
            *sin = libm::sinf(angle) * self.amplitude;
        }
    }
}

/// Frequency number `index`, stretched.
fn scale(frequency: f32, index: usize, scaling: &RopeScaling) -> f32 {
    match *scaling {
        RopeScaling::None => frequency,
        RopeScaling::Linear { factor } => frequency / factor,
        RopeScaling::Proportional { turning, factor } => {
            if index < turning {
                frequency / factor
            } else {
                0.0
            }
        }
        RopeScaling::Long { ref factors, .. } => frequency / factors.get(index).copied().unwrap_or(1.0),
        RopeScaling::Yarn { factor, kept, stretched, .. } => {
            let part = ((index as f32 - kept) / (stretched - kept)).clamp(0.0, 1.0);
            frequency / factor * part + frequency * (1.0 - part)
        }
        RopeScaling::Llama3 { factor, low, high, original } => {
            let wavelength = 2.0 * std::f32::consts::PI / frequency;
            if wavelength < original / high {
                frequency
            } else if wavelength > original / low {
                frequency / factor
            } else {
                let smooth = (original / wavelength - low) / (high - low);
                (1.0 - smooth) * frequency / factor + smooth * frequency
            }
        }
    }
}

/// Turns the first `2 * cos.len()` of one head's channels; the others, if there are any, stay as they are.
#[inline(always)]
pub fn turn(head: &mut [f32], cos: &[f32], sin: &[f32], pairs: RopePairs) {
    let head = &mut head[..2 * cos.len()];
    match pairs {
        RopePairs::Halves => {
            let (first, second) = head.split_at_mut(cos.len());
            for (((a, b), cos), sin) in first.iter_mut().zip(second).zip(cos).zip(sin) {
                (*a, *b) = turned(*a, *b, *cos, *sin);
            }
        }
        RopePairs::Neighbours => {
            for ((pair, cos), sin) in head.chunks_exact_mut(2).zip(cos).zip(sin) {
                (pair[0], pair[1]) = turned(pair[0], pair[1], *cos, *sin);
            }
        }
    }
}

/// The point `(a, b)`, turned.
#[inline(always)]
fn turned(a: f32, b: f32, cos: f32, sin: f32) -> (f32, f32) {
    (a * cos - b * sin, b * cos + a * sin)
}
