//! Request lists: traces in Azure's format or with plain seconds, and lists drawn from a workload.

use tsnode_coordinator::{
    policy::{batching::ServiceNo, routing::Asked},
    replay::machines::Arrival,
    rng::Rng,
    scheduler::workload::Workload,
};
use tsnode_protocol::Seconds;

/// Longest prompt or answer believed (tokens).
const MOST_TOKENS: u32 = 1 << 20;
/// Columns of Azure's traces, and of lists with plain seconds.
const COLUMNS: [[&str; 3]; 2] =
    [["TIMESTAMP", "ContextTokens", "GeneratedTokens"], ["arrival_s", "prompt_tokens", "output_tokens"]];

/// Why something is no trace.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum TraceError {
    /// One line of it.
    #[error("line {line}: {what}")]
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

/// Reads a trace; times count from its first request.
///
/// # Errors
/// The first line that is not as it should be: missing columns, numbers that are none, times that go back, no tokens.
pub fn read(text: &str) -> Result<Vec<Arrival>, TraceError> {
    let mut lines = text.lines().enumerate().filter(|(_, l)| !l.trim().is_empty());
    let wrong = |line: usize, what: String| TraceError::Line { line: line + 1, what };
    let (_, header) = lines.next().ok_or(TraceError::Empty)?;
    let names: Vec<&str> = header.split(',').map(str::trim).collect();
    let place = |name: &&str| names.iter().position(|n| n == name);
    let found = COLUMNS.iter().find_map(|c| c.iter().map(place).collect::<Option<Vec<usize>>>());
    let Some(&[at, prompt, answer]) = found.as_deref() else {
        let [azure, plain] = COLUMNS.map(|c| c.join(","));
        return Err(wrong(0, format!("the columns must be {azure} or {plain}")));
    };
    let mut all: Vec<Arrival> = Vec::new();
    let mut first = None;
    for (line, row) in lines {
        let cells: Vec<&str> = row.split(',').map(str::trim).collect();
        let cell = |place: usize| cells.get(place).copied().unwrap_or("");
        let short = |text: &str| text.chars().take(30).collect::<String>();
        let tokens = |place: usize| {
            let number = cell(place).parse::<u32>().ok().filter(|n| (1..=MOST_TOKENS).contains(n));
            number.ok_or_else(|| wrong(line, format!("{:?} is no number of tokens", short(cell(place)))))
        };
        let time = seconds(cell(at)).ok_or_else(|| wrong(line, format!("{:?} is no time", short(cell(at)))))?;
        let time = Seconds(time - *first.get_or_insert(time));
        if all.last().map_or(time < Seconds(0.0), |a| time < a.at) {
            return Err(wrong(line, "a request that comes before the one above it".into()));
        }
        all.push(Arrival { at: time, asked: Asked::new(tokens(prompt)?, tokens(answer)?) });
    }
    if all.is_empty() { Err(TraceError::Empty) } else { Ok(all) }
}

/// Seconds, or a date and a time of day (`2023-11-16 18:17:03.9799600`).
fn seconds(text: &str) -> Option<f64> {
    let valid = |s: f64| (s.is_finite() && s >= 0.0).then_some(s);
    if let Ok(plain) = text.parse::<f64>() {
        return valid(plain);
    }
    let (date, time) = text.split_once([' ', 'T'])?;
    let mut date = date.split('-').map(|p| p.parse::<i64>().ok());
    let (year, month, day) = (date.next()??, date.next()??, date.next()??);
    let mut time = time.split(':').map(|p| p.parse::<f64>().ok());
    let (hour, minute, second) = (time.next()??, time.next()??, time.next()??);
    ((1..=12).contains(&month) && (1..=31).contains(&day) && (0..=9999).contains(&year)).then_some(())?;
    valid(days(year, month, day) as f64 * 86_400.0 + hour * 3600.0 + minute * 60.0 + second)
}

/// Days since the first of March of the year 0: years begin in March, so that leap days come last.
fn days(year: i64, month: i64, day: i64) -> i64 {
    let (year, month) = if month > 2 { (year, month - 3) } else { (year - 1, month + 9) };
    365 * year + year.div_euclid(4) - year.div_euclid(100) + year.div_euclid(400) + (153 * month + 2) / 5 + day - 1
}

/// How requests come.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Arriving {
    /// Poisson.
    Poisson,
    /// In bursts: gaps with this squared coefficient of variation, above 1, as a mixture of two exponentials.
    Bursty(f64),
}

/// Draws requests of a workload.
#[must_use]
pub fn drawn(workload: &Workload, rate: f64, requests: usize, arriving: Arriving, seed: u64) -> Vec<Arrival> {
    let (mut rng, mut at) = (Rng::new(seed), Seconds(0.0));
    let mut next = || {
        at += Seconds(gap(&mut rng, arriving) / rate);
        let request = workload.requests[rng.below(workload.requests.len())];
        let tokens = |n: f64| n.clamp(1.0, f64::from(MOST_TOKENS)) as u32;
        Arrival { at, asked: Asked::new(tokens(request.prompt.0), tokens(request.answer.0)) }
    };
    (0..requests).map(|_| next()).collect()
}

/// Lists of several services, the first for service 0, as one list in order of arrival.
#[must_use]
pub fn beside(lists: Vec<Vec<Arrival>>) -> Vec<Arrival> {
    let mut all = Vec::with_capacity(lists.iter().map(Vec::len).sum());
    for (service, list) in lists.into_iter().enumerate() {
        let service = ServiceNo(service as u16);
        all.extend(list.into_iter().map(|a| Arrival { asked: Asked { service, ..a.asked }, ..a }));
    }
    all.sort_by(|a, b| a.at.0.total_cmp(&b.at.0));
    all
}

/// A gap of mean one. Of two exponentials with balanced means, the squared variation c² wants the likelier one drawn with
/// p = (1 + √((c² − 1)/(c² + 1)))/2.
pub(super) fn gap(rng: &mut Rng, arriving: Arriving) -> f64 {
    match arriving {
        Arriving::Poisson => rng.exponential(1.0),
        Arriving::Bursty(variation) => {
            let c = variation.max(1.0);
            let p = 0.5 * (1.0 + ((c - 1.0) / (c + 1.0)).sqrt());
            let part = if rng.unit() < p { p } else { 1.0 - p };
            rng.exponential(0.5 / part)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn traces_are_read_in_either_form() {
        let azure =
            "TIMESTAMP,ContextTokens,GeneratedTokens\n2023-11-16 23:59:59.5000000,10,2\n2023-11-17 00:00:01,30,4";
        let plain = "arrival_s,prompt_tokens,output_tokens\n1.0,10,2\n2.5,30,4\n";
        for text in [azure, plain] {
            let all = read(text).unwrap();
            assert_eq!(all[1], Arrival { at: Seconds(1.5), asked: Asked::new(30, 4) });
        }
    }

    #[test]
    fn a_bad_line_is_named() {
        let head = "arrival_s,prompt_tokens,output_tokens\n1,10,2\n";
        let cases = [
            ("2,10", "line 3: \"\" is no number of tokens"),
            ("2,10,0", "line 3: \"0\" is no number of tokens"),
            ("2,-1,5", "line 3: \"-1\" is no number of tokens"),
            ("0.5,1,5", "line 3: a request that comes before"),
            ("nan,1,5", "line 3: \"nan\" is no time"),
            ("-1,1,5", "line 3: \"-1\" is no time"),
        ];
        for (row, reason) in cases {
            let error = read(&format!("{head}{row}\n")).unwrap_err().to_string();
            assert!(error.starts_with(reason), "{row}: {error}");
        }
        assert!(read("a,b\n1,2\n").unwrap_err().to_string().starts_with("line 1: the columns must be TIMESTAMP,"));
        assert_eq!(read("arrival_s,prompt_tokens,output_tokens\n"), Err(TraceError::Empty));
    }

    #[test]
    fn gaps_have_the_mean_and_variation_asked_for() {
        let workload = Workload::named("coding").unwrap();
        for (arriving, variation) in [(Arriving::Poisson, 1.0), (Arriving::Bursty(9.0), 9.0)] {
            let all = drawn(&workload, 5.0, 200_000, arriving, 1);
            let gaps: Vec<f64> = all.windows(2).map(|w| (w[1].at - w[0].at).0).collect();
            let mean = gaps.iter().sum::<f64>() / gaps.len() as f64;
            let square = gaps.iter().map(|g| (g / mean - 1.0).powi(2)).sum::<f64>() / gaps.len() as f64;
            assert!((mean * 5.0 - 1.0).abs() < 0.03, "{arriving:?}: mean {mean}");
            assert!((square / variation - 1.0).abs() < 0.1, "{arriving:?}: variation {square}");
        }
    }
}
