//! Times of iterations as measured and tabulated: CSV with the columns of Splitwise's `perf_model.csv`.

use super::measured_cost::{CostLine, Table};
use std::collections::BTreeMap;

/// Columns a table must have.
const COLUMNS: [&str; 7] =
    ["model", "hardware", "tensor_parallel", "prompt_size", "batch_size", "prompt_time", "token_time"];

/// Why something is no table.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum TableError {
    /// One line of it.
    #[error("line {line}: {what}")]
    Line {
        /// Which, counted from 1.
        line: usize,
        /// What is wrong.
        what: String,
    },
    /// Too little of what was asked for.
    #[error("no two rows of {model} on {hardware} with {devices} devices side by side")]
    Missing {
        /// The model.
        model: String,
        /// The kind of machine.
        hardware: String,
        /// Devices side by side.
        devices: u16,
    },
}

/// Seconds by number of tokens.
type TimesByTokens = BTreeMap<u64, Vec<f64>>;

/// The lines of a model on a kind of machine: at each number of tokens, prompt · batch, the median of all rows.
///
/// # Errors
/// A missing column, a number that is none, too few rows.
pub fn read(text: &str, model: &str, hardware: &str, devices: u16) -> Result<Table, TableError> {
    let wrong = |line: usize, what: String| TableError::Line { line: line + 1, what };
    let mut lines = text.lines().enumerate();
    let header: Vec<&str> = lines.next().map_or("", |l| l.1).split(',').map(str::trim).collect();
    let mut places = [0; COLUMNS.len()];
    for (place, name) in places.iter_mut().zip(COLUMNS) {
        let found = header.iter().position(|h| *h == name);
        *place = found.ok_or_else(|| wrong(0, format!("no column {name}")))?;
    }
    let [of_model, of_hardware, of_devices, prompt, batch, prompt_time, token_time] = places;
    let (mut prompts, mut tokens) = (TimesByTokens::new(), TimesByTokens::new());
    for (line, row) in lines.filter(|(_, l)| !l.trim().is_empty()) {
        let cells: Vec<&str> = row.split(',').map(str::trim).collect();
        let cell = |place: usize| cells.get(place).copied().unwrap_or("");
        if (cell(of_model), cell(of_hardware)) != (model, hardware) || cell(of_devices) != devices.to_string() {
            continue;
        }
        let number = |place: usize| {
            let valid = cell(place).parse::<f64>().ok().filter(|n| n.is_finite() && *n > 0.0);
            valid.ok_or_else(|| wrong(line, format!("{:?} is no positive number", cell(place))))
        };
        let x = (number(prompt)? * number(batch)?) as u64;
        prompts.entry(x).or_default().push(number(prompt_time)? / 1e3);
        tokens.entry(x).or_default().push(number(token_time)? / 1e3);
    }
    let line = |times: TimesByTokens| CostLine::new(times.into_iter().map(|(x, t)| (x as f64, median(t))).collect());
    let missing = || TableError::Missing { model: model.to_owned(), hardware: hardware.to_owned(), devices };
    Ok(Table { prompt: line(prompts).ok_or_else(missing)?, answer: line(tokens).ok_or_else(missing)? })
}

fn median(mut all: Vec<f64>) -> f64 {
    all.sort_by(f64::total_cmp);
    let n = all.len();
    0.5 * (all[(n - 1) / 2] + all[n / 2])
}

#[cfg(test)]
mod tests {
    use super::*;

    const HEAD: &str = "model,hardware,prompt_size,batch_size,prompt_time,token_time,tensor_parallel\n";

    #[test]
    fn knots_are_medians_and_lines_go_on_outside() {
        let rows = "m,h,100,1,10,1,8\nm,h,100,1,30,3,8\nm,h,100,2,40,4,8\nm,h,100,2,9,9,4\n";
        let table = read(&format!("{HEAD}{rows}"), "m", "h", 8).unwrap();
        assert!((table.prompt.at(100.0) - 0.02).abs() < 1e-12 && (table.prompt.at(150.0) - 0.03).abs() < 1e-12);
        assert!((table.answer.at(300.0) - 0.006).abs() < 1e-12 && table.answer.at(0.0).abs() < 1e-12);
    }

    #[test]
    fn what_is_wrong_is_named() {
        let error = |text: &str| read(text, "m", "h", 8).unwrap_err().to_string();
        assert_eq!(error("a,b\n"), "line 1: no column model");
        assert_eq!(error(&format!("{HEAD}m,h,x,1,1,1,8\n")), "line 2: \"x\" is no positive number");
        assert!(error(&format!("{HEAD}m,h,1,1,1,1,8\n")).starts_with("no two rows of m on h"));
    }
}
