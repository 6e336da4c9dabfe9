//! What requests look like: lengths of prompts and answers, as a fixed set of equally likely requests.
//!
//! Averages over the set stand for expectations, so a plan's value is a number that anyone can recompute.

use crate::rng::Rng;
use tsnode_protocol::Tokens;

/// Requests in a set made from a distribution or a trace.
const SET: usize = 64;
/// Longest prompt or answer believed (tokens).
const MOST_TOKENS: Tokens = Tokens((1 << 20) as f64);
/// Shortest.
const ONE: Tokens = Tokens(1.0);

/// Lengths of one request.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct WorkloadRequest {
    /// Tokens of the prompt.
    pub prompt: Tokens,
    /// Tokens of the answer, the first included.
    pub answer: Tokens,
}

impl WorkloadRequest {
    /// Decode steps: one for each token of the answer after the first.
    #[must_use]
    pub fn steps(&self) -> f64 {
        self.answer.0 - 1.0
    }
}

/// Equally likely requests.
#[derive(Clone, Debug, PartialEq)]
pub struct Workload {
    /// What tables and reports call it.
    pub name: String,
    /// The requests, each as likely as any other.
    pub requests: Vec<WorkloadRequest>,
    /// Averages of them.
    pub mean: Means,
}

/// Averages over a workload's requests.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Means {
    /// E[L], of prompts.
    pub prompt: Tokens,
    /// E[L²], of prompts (tokens²).
    pub prompt_squared: f64,
    /// E[o], of answers.
    pub answer: Tokens,
    /// Decode steps: E[o − 1], at least a little.
    pub steps: f64,
    /// Squared coefficient of variation of the number of steps.
    pub steps_variation: f64,
    /// Tokens a sequence has while it decodes, on average over the time it does.
    pub context: Tokens,
    /// Tokens a sequence will have had when it ends, averaged alike: what memory is reserved for.
    pub reserved: Tokens,
    /// Their squares, averaged alike (tokens²).
    pub reserved_squared: f64,
    /// Squared coefficient of variation of what a request holds in memory, times how long.
    pub held_variation: f64,
    /// Tokens of the longest request.
    pub longest: Tokens,
}

/// Why something is no workload.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum WorkloadError {
    /// Not a trace.
    #[error("line {line}: {what}; a trace is CSV with the columns ContextTokens and GeneratedTokens")]
    Line {
        /// Which, counted from 1.
        line: usize,
        /// What is wrong.
        what: String,
    },
    /// Nothing in it.
    #[error("the trace has no requests")]
    Empty,
}

/// Percentiles of a trace's lengths (tokens), at [`SHARES`].
struct LengthPercentiles {
    prompt: [f64; 8],
    answer: [f64; 8],
}

/// Where percentiles are given.
const SHARES: [f64; 8] = [0.01, 0.1, 0.25, 0.5, 0.75, 0.9, 0.99, 1.0];

// Percentiles of Azure's LLM inference traces of 2023 (P. Patel et al., "Splitwise", ISCA 2024; Creative Commons
// Attribution 4.0): 8,819 and 19,366 requests.
const CODING: LengthPercentiles = LengthPercentiles {
    prompt: [17.0, 147.0, 578.0, 1469.0, 2745.0, 5188.0, 7436.0, 7437.0],
    answer: [6.0, 7.0, 9.0, 13.0, 24.0, 55.0, 251.0, 1899.0],
};
const CONVERSATION: LengthPercentiles = LengthPercentiles {
    prompt: [29.0, 207.0, 396.0, 1020.0, 1189.0, 2735.0, 4142.0, 14050.0],
    answer: [16.0, 54.0, 85.0, 129.0, 395.0, 424.0, 601.0, 1000.0],
};

impl Workload {
    /// One that has a name: `coding` or `conversation`, the services whose traces the papers use.
    #[must_use]
    pub fn named(name: &str) -> Option<Self> {
        match name {
            "coding" => Some(Self::from_percentiles(name, &CODING)),
            "conversation" => Some(Self::from_percentiles(name, &CONVERSATION)),
            _ => None,
        }
    }

    /// Every request alike.
    #[must_use]
    pub fn uniform(prompt: Tokens, answer: Tokens) -> Self {
        Self::new(format!("{} tokens in, {} out", prompt.0, answer.0), vec![WorkloadRequest { prompt, answer }])
    }

    /// These requests; lengths are brought into bounds.
    #[must_use]
    pub fn new(name: String, mut requests: Vec<WorkloadRequest>) -> Self {
        for request in &mut requests {
            request.prompt = request.prompt.max(ONE).min(MOST_TOKENS);
            request.answer = request.answer.max(ONE).min(MOST_TOKENS);
        }
        let mean = means(&requests);
        Self { name, requests, mean }
    }

    /// A trace: CSV with a header that names `ContextTokens` and `GeneratedTokens`. Rows stay together, so that long
    /// prompts keep their answers; of a long trace, evenly spread ones by length of prompt are taken.
    ///
    /// # Errors
    /// The first line that is not as it should be.
    pub fn from_trace(name: &str, text: &str) -> Result<Self, WorkloadError> {
        let mut lines = text.lines().enumerate().filter(|(_, l)| !l.trim().is_empty());
        let wrong = |line: usize, what: String| WorkloadError::Line { line: line + 1, what };
        let (_, header) = lines.next().ok_or(WorkloadError::Empty)?;
        let column = |name: &str| {
            let place = header.split(',').position(|c| c.trim() == name);
            place.ok_or_else(|| wrong(0, format!("no column {name}")))
        };
        let (prompts, answers) = (column("ContextTokens")?, column("GeneratedTokens")?);
        let mut all = Vec::new();
        for (line, row) in lines {
            let cells: Vec<&str> = row.split(',').collect();
            let number = |place: usize| {
                let text = cells.get(place).map_or("", |c| c.trim());
                let number = text.parse::<f64>().ok().filter(|n| n.is_finite() && *n >= 0.0);
                number.ok_or_else(|| {
                    wrong(line, format!("{:?} is no number of tokens", text.chars().take(20).collect::<String>()))
                })
            };
            all.push(WorkloadRequest { prompt: Tokens(number(prompts)?), answer: Tokens(number(answers)?) });
        }
        if all.is_empty() {
            return Err(WorkloadError::Empty);
        }
        Ok(Self::new(name.to_owned(), spread(all)))
    }

    /// The same with no request longer than a model's context: prompts are cut as gateways would refuse them longer.
    #[must_use]
    pub fn within(mut self, context: Tokens) -> Self {
        for request in &mut self.requests {
            request.prompt = request.prompt.min((context * 0.75).max(ONE));
            request.answer = request.answer.min((context - request.prompt).max(ONE));
        }
        Self::new(self.name, self.requests)
    }

    /// Prompt and answer drawn independently, by log-linear interpolation between percentiles.
    fn from_percentiles(name: &str, percentiles: &LengthPercentiles) -> Self {
        let mut order: Vec<usize> = (0..SET).collect();
        let mut rng = Rng::new(0);
        for i in (1..SET).rev() {
            order.swap(i, rng.below(i + 1));
        }
        let at = |i: usize| (i as f64 + 0.5) / SET as f64;
        let request = |(i, &j): (usize, &usize)| WorkloadRequest {
            prompt: Tokens(length(&percentiles.prompt, at(i)).round()),
            answer: Tokens(length(&percentiles.answer, at(j)).round()).max(ONE),
        };
        Self::new(name.to_owned(), order.iter().enumerate().map(request).collect())
    }
}

/// Evenly spread requests by length of prompt, each from somewhere in its part.
fn spread(mut all: Vec<WorkloadRequest>) -> Vec<WorkloadRequest> {
    if all.len() <= SET {
        return all;
    }
    all.sort_by(|a, b| a.prompt.0.total_cmp(&b.prompt.0).then(a.answer.0.total_cmp(&b.answer.0)));
    let part = all.len() as f64 / SET as f64;
    let mut rng = Rng::new(0);
    (0..SET).map(|i| all[(((i as f64 + rng.unit()) * part) as usize).min(all.len() - 1)]).collect()
}

/// The length that a share `p` of requests does not pass, log-linear between percentiles.
fn length(percentiles: &[f64; 8], p: f64) -> f64 {
    let k = SHARES.iter().rposition(|s| *s <= p).unwrap_or(0).min(SHARES.len() - 2);
    let (a, b) = (percentiles[k].ln(), percentiles[k + 1].ln());
    (a + (b - a) * ((p - SHARES[k]) / (SHARES[k + 1] - SHARES[k])).max(0.0)).exp()
}

fn means(requests: &[WorkloadRequest]) -> Means {
    let n = requests.len().max(1) as f64;
    let sum = |f: &dyn Fn(&WorkloadRequest) -> f64| requests.iter().map(f).sum::<f64>();
    let steps = |r: &WorkloadRequest| r.steps().max(0.05);
    let decoding = sum(&steps);
    let whole = |r: &WorkloadRequest| r.prompt + r.answer;
    let held = |r: &WorkloadRequest| steps(r) * whole(r).0;
    let decoded = |f: &dyn Fn(&WorkloadRequest) -> Tokens| Tokens(sum(&|r| steps(r) * f(r).0) / decoding);
    Means {
        prompt: Tokens(sum(&|r| r.prompt.0) / n),
        prompt_squared: sum(&|r| r.prompt.0 * r.prompt.0) / n,
        answer: Tokens(sum(&|r| r.answer.0) / n),
        steps: decoding / n,
        steps_variation: sum(&|r| steps(r).powi(2)) * n / decoding.powi(2) - 1.0,
        context: decoded(&|r| r.prompt + r.answer * 0.5),
        reserved: decoded(&whole),
        reserved_squared: sum(&|r| steps(r) * whole(r).0.powi(2)) / decoding,
        held_variation: sum(&|r| held(r).powi(2)) * n / sum(&held).powi(2) - 1.0,
        longest: requests.iter().map(whole).fold(Tokens(0.0), Tokens::max),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Means as published for the whole traces: 2,047.8 and 27.9; 1,154.7 and 211.1 tokens.
    #[test]
    fn named_workloads_have_the_traces_means() {
        for (name, prompt, answer) in [("coding", 2047.8, 27.9), ("conversation", 1154.7, 211.1)] {
            let mean = Workload::named(name).unwrap().mean;
            assert!((mean.prompt.0 / prompt - 1.0).abs() < 0.15, "{name}: {} tokens in", mean.prompt);
            assert!((mean.answer.0 / answer - 1.0).abs() < 0.15, "{name}: {} tokens out", mean.answer);
        }
        assert!(Workload::named("poetry").is_none());
    }

    #[test]
    fn traces_are_read_and_refused_by_line() {
        let text = "TIMESTAMP,ContextTokens,GeneratedTokens\n0,10,2\n1,30,4\n";
        let workload = Workload::from_trace("t", text).unwrap();
        assert!((workload.mean.prompt.0 - 20.0).abs() < 1e-12 && (workload.mean.answer.0 - 3.0).abs() < 1e-12);
        let error = Workload::from_trace("t", &text.replace("30", "NaN")).unwrap_err().to_string();
        assert!(error.starts_with("line 3") && error.contains("NaN"), "{error}");
        assert!(Workload::from_trace("t", "a,b\n").unwrap_err().to_string().contains("no column"));
        assert_eq!(Workload::from_trace("t", "ContextTokens,GeneratedTokens\n"), Err(WorkloadError::Empty));
    }
}
