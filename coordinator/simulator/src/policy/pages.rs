//! KV memory in pages of one size that all services of a machine share (SeaLLM §4.4): a page holds as many tokens of a
//! service as fit.

use tsnode_coordinator::policy::batching::ServiceNo;
use tsnode_protocol::{Bytes, BytesPerToken};

/// Tokens of the largest service in a page: what vLLM's blocks hold.
const PAGE: f64 = 16.0;

/// Pages, and what services make of them.
#[derive(Clone, Debug, PartialEq)]
pub struct Pages {
    all: u64,
    used: u64,
    /// Tokens in a page, by service.
    tokens: Vec<u64>,
}

impl Pages {
    /// So many pages, each of so many tokens of each service.
    #[must_use]
    pub fn new(pages: u64, tokens: Vec<u64>) -> Self {
        Self { all: pages, used: 0, tokens: tokens.into_iter().map(|t| t.max(1)).collect() }
    }

    /// Memory for KV, in pages of 16 tokens of the largest service: the merged blocks of SeaLLM's Figure 5 (c).
    #[must_use]
    pub fn merged(memory: Bytes, per_token: &[BytesPerToken]) -> Self {
        let largest = per_token.iter().fold(0.0f64, |most, b| most.max(b.0));
        let pages = memory.0 / (PAGE * largest);
        Self::new(pages.max(0.0) as u64, per_token.iter().map(|b| (PAGE * largest / b.0) as u64).collect())
    }

    /// Pages for so many tokens of a service; of one that is not known, as if it were the largest.
    #[must_use]
    pub fn of(&self, service: ServiceNo, tokens: u64) -> u64 {
        tokens.div_ceil(self.tokens(service))
    }

    /// Tokens of a service in a page; of one that is not known, as if it were the largest.
    #[must_use]
    pub fn tokens(&self, service: ServiceNo) -> u64 {
        let page = self.tokens.get(usize::from(service.0)).copied();
        page.unwrap_or_else(|| self.tokens.iter().copied().min().unwrap_or(1))
    }

    /// Whether so many are free.
    #[must_use]
    pub fn has(&self, pages: u64) -> bool {
        self.used.saturating_add(pages) <= self.all
    }

    /// Pages that nobody uses.
    #[must_use]
    pub fn free(&self) -> u64 {
        self.all.saturating_sub(self.used)
    }

    /// Pages in use.
    #[must_use]
    pub fn used(&self) -> u64 {
        self.used
    }

    /// Pages in all.
    #[must_use]
    pub fn all(&self) -> u64 {
        self.all
    }

    /// Takes pages, whether they are there or not.
    pub(super) fn take(&mut self, pages: u64) {
        self.used += pages;
    }

    /// Gives pages back.
    pub(super) fn give(&mut self, pages: u64) {
        self.used = self.used.saturating_sub(pages);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// LLaMA-2 with 7B and 13B parameters has 0.5 MiB and 0.78 MiB a token in fp16: a page of 16 tokens of the larger
    /// holds 25 of the smaller.
    #[test]
    fn a_page_holds_more_tokens_of_a_smaller_model() {
        let (small, large) = (2.0 * 2.0 * 32.0 * 4096.0, 2.0 * 2.0 * 40.0 * 5120.0);
        let pages = Pages::merged(Bytes(1e9), &[BytesPerToken(small), BytesPerToken(large)]);
        assert_eq!(pages.all(), 76);
        assert_eq!([1, 25, 26].map(|n| pages.of(ServiceNo(0), n)), [1, 1, 2]);
        assert_eq!([1, 16, 17].map(|n| pages.of(ServiceNo(1), n)), [1, 1, 2]);
        assert_eq!(pages.of(ServiceNo(7), 17), 2, "a service that is not known counts as the largest");
    }
}
