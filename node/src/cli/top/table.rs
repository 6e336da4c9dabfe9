//! Tables of `tsnode top`: what is sorted, filtered and fitted into columns, before anything is drawn.

use crate::cli::text_layout::{fitted, harmless, width};
use std::cmp::Ordering;

/// Columns between two columns.
pub(super) const GAP: usize = 2;

/// What one pane lists.
#[derive(Debug)]
pub(super) struct PaneTable {
    pub columns: Vec<TableColumn>,
    pub rows: Vec<TableRow>,
}

/// A column: its title, and how it takes to a narrow window.
#[derive(Clone, Debug)]
pub(super) struct TableColumn {
    pub title: String,
    pub fit: ColumnFit,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ColumnFit {
    /// A number, to the right; it is never cut.
    Number,
    /// Short words; they are never cut.
    Words,
    /// A text that is cut where there is no room.
    Text,
    /// A text or number that is left out where there is no room for all.
    Spare,
}

/// How a row is to be taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum RowMood {
    Good,
    Waiting,
    Bad,
    Quiet,
}

#[derive(Debug)]
pub(super) struct TableRow {
    pub cells: Vec<TableCell>,
    /// That of its state.
    pub mood: RowMood,
}

/// What is shown, and by what it is sorted.
#[derive(Clone, Debug)]
pub(super) struct TableCell {
    pub shown: String,
    number: Option<f64>,
}

impl TableCell {
    /// A text of others'.
    pub fn text(text: impl AsRef<str>) -> Self {
        Self { shown: harmless(text.as_ref()), number: None }
    }

    /// A number as it is shown.
    pub fn number(number: f64, shown: impl Into<String>) -> Self {
        Self { shown: shown.into(), number: Some(number) }
    }

    /// A number that may not be known.
    pub fn known(number: Option<f64>, shown: impl Fn(f64) -> String) -> Self {
        number.map_or_else(|| Self::number(f64::NEG_INFINITY, "-"), |number| Self::number(number, shown(number)))
    }

    fn compare(&self, other: &Self) -> Ordering {
        match (self.number, other.number) {
            (Some(one), Some(other)) => one.total_cmp(&other),
            _ => self.shown.to_lowercase().cmp(&other.shown.to_lowercase()),
        }
    }
}

/// By which column, and which way.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Sort {
    pub column: usize,
    pub descends: bool,
}

impl PaneTable {
    /// Those rows that have the text in any cell, whatever its case.
    pub fn filter(&mut self, text: &str) {
        let text = text.to_lowercase();
        self.rows.retain(|row| row.cells.iter().any(|cell| cell.shown.to_lowercase().contains(&text)));
    }

    /// Rows that are equal stay as they were.
    pub fn sort(&mut self, Sort { column, descends }: Sort) {
        self.rows.sort_by(|one, other| {
            let (Some(one), Some(other)) = (one.cells.get(column), other.cells.get(column)) else {
                return Ordering::Equal;
            };
            let order = one.compare(other);
            if descends { order.reverse() } else { order }
        });
    }

    /// How wide each column is in a window of so many columns; nought is for one that is left out.
    pub fn widths(&self, window: usize) -> Vec<usize> {
        let widest =
            |index: usize| self.rows.iter().filter_map(move |row| row.cells.get(index)).map(|c| width(&c.shown));
        let full = |(index, column): (usize, &TableColumn)| widest(index).fold(width(&column.title), usize::max);
        let mut widths: Vec<usize> = self.columns.iter().enumerate().map(full).collect();
        let taken =
            |widths: &[usize]| widths.iter().filter(|w| **w > 0).map(|w| w + GAP).sum::<usize>().saturating_sub(GAP);
        // What can be spared goes from the right.
        for index in (0..widths.len()).rev() {
            if self.columns[index].fit == ColumnFit::Spare && taken(&widths) > window {
                widths[index] = 0;
            }
        }
        // The widest text gives way first.
        while taken(&widths) > window {
            let texts = widths.iter_mut().zip(&self.columns).filter(|(_, c)| c.fit == ColumnFit::Text).map(|(w, _)| w);
            match texts.max().filter(|widest| **widest > SHORTEST) {
                Some(widest) => *widest -= 1,
                None => break,
            }
        }
        widths
    }

    /// A row's texts, as wide as columns are.
    pub fn fitted(row: &TableRow, widths: &[usize]) -> Vec<String> {
        row.cells.iter().zip(widths).map(|(cell, width)| fitted(&cell.shown, *width)).collect()
    }
}

/// A text says nothing in fewer columns.
const SHORTEST: usize = 6;

#[cfg(test)]
mod tests {
    use super::*;

    fn table(names: &[(&str, f64)]) -> PaneTable {
        let column = |title: &str, fit| TableColumn { title: title.into(), fit };
        let columns =
            vec![column("NAME", ColumnFit::Text), column("LOAD", ColumnFit::Number), column("NOTE", ColumnFit::Spare)];
        let row = |(name, load): &(&str, f64)| TableRow {
            cells: vec![
                TableCell::text(name),
                TableCell::number(*load, format!("{load}")),
                TableCell::text("a note of no weight"),
            ],
            mood: RowMood::Good,
        };
        PaneTable { columns, rows: names.iter().map(row).collect() }
    }

    fn names(table: &PaneTable) -> Vec<&str> {
        table.rows.iter().map(|row| row.cells[0].shown.as_str()).collect()
    }

    #[test]
    fn numbers_are_sorted_as_numbers_and_texts_whatever_their_case() {
        let mut table = table(&[("b", 9.0), ("A", 10.0), ("c", 9.0)]);
        table.sort(Sort { column: 1, descends: true });
        assert_eq!(names(&table), ["A", "b", "c"]);
        table.sort(Sort { column: 1, descends: false });
        assert_eq!(names(&table), ["b", "c", "A"], "equal rows stay as they were");
        table.sort(Sort { column: 0, descends: false });
        assert_eq!(names(&table), ["A", "b", "c"]);
        table.sort(Sort { column: 9, descends: true });
        assert_eq!(names(&table), ["A", "b", "c"]);
    }

    #[test]
    fn a_filter_looks_at_every_cell() {
        let mut table = table(&[("Attic", 1.5), ("desk", 2.0)]);
        table.filter("aTT");
        assert_eq!(names(&table), ["Attic"]);
        table.filter("1.5");
        assert_eq!(names(&table), ["Attic"]);
        table.filter("nobody");
        assert!(table.rows.is_empty());
    }

    #[test]
    fn what_can_be_spared_goes_first_and_then_the_widest_text_is_cut() {
        let table = table(&[("a-rather-long-name-of-a-machine", 1.0)]);
        assert_eq!(table.widths(80), [31, 4, 19]);
        assert_eq!(table.widths(50), [31, 4, 0]);
        assert_eq!(table.widths(20), [14, 4, 0]);
        assert_eq!(PaneTable::fitted(&table.rows[0], &table.widths(20))[0], "a-rather-long…");
        assert_eq!(table.widths(2), [SHORTEST, 4, 0], "no window is so narrow that it hangs");
    }

    #[test]
    fn names_of_others_drive_no_terminal() {
        assert_eq!(TableCell::text("a\u{1b}[2Jb").shown, "a\u{fffd}[2Jb");
    }
}
