//! How far a pull is: a bar where somebody watches, lines elsewhere.

use crate::{
    hardware::memory::Size,
    hub::{ModelName, PullNews},
};
use indicatif::{ProgressBar, ProgressStyle};

/// Less is fetched before a line about it is read (bytes).
const WORTH_LINES: u64 = 64 << 20;
/// Lines about one pull.
const LINES: u64 = 10;

/// One pull.
pub(in crate::cli) struct Bars {
    name: String,
    bar: ProgressBar,
    done: u64,
    total: u64,
    told: u64,
}

impl Bars {
    pub fn new(name: &ModelName) -> Self {
        Self { name: name.to_string(), bar: ProgressBar::hidden(), done: 0, total: 0, told: 0 }
    }

    pub fn show(&mut self, news: PullNews<'_>) {
        match news {
            PullNews::Begins { bytes, files } => self.begin(bytes, files),
            PullNews::Here(bytes) | PullNews::Came(bytes) => self.done += bytes,
            PullNews::Lost(bytes) => self.done = self.done.saturating_sub(bytes),
            PullNews::Waits { file } => {
                self.bar.suspend(|| note!("{}: another process fetches {file}; waiting for it", self.name));
            }
        }
        self.bar.set_position(self.done);
        if self.bar.is_hidden() {
            self.line();
        }
    }

    /// How far it is, of how much: where it is not told piece by piece.
    pub fn stand(&mut self, done: u64, total: u64) {
        if self.total != total {
            self.draw(total);
        }
        self.done = done;
        self.bar.set_position(done);
        if self.bar.is_hidden() {
            self.line();
        }
    }

    fn begin(&mut self, bytes: u64, files: usize) {
        if files == 0 {
            return;
        }
        self.draw(bytes);
        if self.bar.is_hidden() {
            let s = if files == 1 { "" } else { "s" };
            note!("{}: fetching {} in {files} file{s}", self.name, Size(bytes));
        }
    }

    fn draw(&mut self, total: u64) {
        self.total = total;
        let template = "{prefix} {bar:30} {binary_bytes} of {binary_total_bytes}, {binary_bytes_per_sec}, {eta} left";
        let style = ProgressStyle::with_template(template).unwrap_or_else(|_| ProgressStyle::default_bar());
        self.bar = ProgressBar::new(total).with_style(style).with_prefix(self.name.clone());
    }

    fn line(&mut self) {
        let part = self.done * LINES / self.total.max(1);
        if self.total >= WORTH_LINES && part > self.told {
            self.told = part;
            note!("{}: {} of {}", self.name, Size(self.done), Size(self.total));
        }
    }
}

impl Drop for Bars {
    fn drop(&mut self) {
        self.bar.finish_and_clear();
    }
}
