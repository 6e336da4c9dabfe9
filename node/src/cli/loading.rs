//! How far loading is: a bar where somebody watches, lines elsewhere.

use crate::hardware::memory::Size;
use indicatif::{ProgressBar, ProgressStyle};
use tsnode_kernels::load::LoadProgress;

/// Less is loaded before a line about it is read (bytes).
const WORTH_LINES: u64 = 1 << 30;
/// Lines about one stage.
const LINES: u64 = 10;

/// One stage after the other.
#[derive(Default)]
pub(super) struct Loading {
    bar: Option<ProgressBar>,
    told: u64,
}

impl Loading {
    /// Shows how far it is, or clears the bar when nothing is loaded any more. Says what is to be printed where nobody
    /// watches.
    pub(super) fn show(&mut self, far: Option<LoadProgress>) -> Option<String> {
        let Some(far) = far else {
            *self = Self::default();
            return None;
        };
        let bar = self.bar.get_or_insert_with(|| bar(far.total));
        bar.set_position(far.done);
        if bar.is_hidden() { self.line(far) } else { None }
    }

    fn line(&mut self, LoadProgress { done, total }: LoadProgress) -> Option<String> {
        let part = done * LINES / total.max(1);
        if total < WORTH_LINES || part <= self.told {
            return None;
        }
        self.told = part;
        Some(format!("loading: {} of {}", Size(done), Size(total)))
    }
}

impl Drop for Loading {
    fn drop(&mut self) {
        if let Some(bar) = &self.bar {
            bar.finish_and_clear();
        }
    }
}

fn bar(total: u64) -> ProgressBar {
    let style = ProgressStyle::with_template("loading {bar:40} {binary_bytes} of {binary_total_bytes}, {eta} left");
    ProgressBar::new(total).with_style(style.unwrap_or_else(|_| ProgressStyle::default_bar()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_are_few_and_none_is_said_twice() {
        let total = 3 << 30;
        let mut loading = Loading::default();
        let lines: Vec<String> =
            (0..=300).filter_map(|i| loading.line(LoadProgress { done: total * i / 300, total })).collect();
        assert_eq!(lines.len(), LINES as usize, "{lines:?}");
        assert!(lines[4].contains("1.5 GiB of 3.0 GiB"), "{lines:?}");
        let small = LoadProgress { done: 1 << 20, total: 1 << 20 };
        assert_eq!(Loading::default().line(small), None);
    }
}
