//! Who holds which KV pages of a device that several models share (SeaLLM §4.4): reserved, extended token by token, given
//! back at the end.
//!
//! What is lost is bounded: of each request's last page less than a page, and of every page what is left beside whole
//! tokens, less than one token's KV ([`HeldPages::most_lost`]).

use super::pages::Pages;
use std::collections::BTreeMap;
use tsnode_coordinator::policy::batching::{RequestNo, ServiceNo};
use tsnode_protocol::{Bytes, BytesPerToken};

/// Tokens of the model with the largest KV in a page, where nothing says otherwise.
pub const TOKENS_A_PAGE: u64 = 16;

/// What a request holds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct RequestHold {
    service: ServiceNo,
    tokens: u64,
    pages: u64,
}

/// Why there is no such pool.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PoolError {
    /// A model whose KV takes nothing: its pages could not be counted.
    #[error("a token of service {0} takes no bytes")]
    NoBytes(u16),
    /// A model of which not even a token fits in a page.
    #[error("a token of service {service} takes {token} bytes, a page has {page}")]
    SmallPage {
        /// Whose.
        service: u16,
        /// Bytes of its KV for one token.
        token: u64,
        /// Bytes of a page.
        page: u64,
    },
}

/// Pages and who holds them.
#[derive(Clone, Debug)]
pub struct HeldPages {
    pages: Pages,
    /// Bytes of a page.
    page: u64,
    /// Bytes of a token's KV, by service.
    token: Vec<u64>,
    held: BTreeMap<RequestNo, RequestHold>,
}

impl HeldPages {
    /// Memory for KV, in pages that hold [`TOKENS_A_PAGE`] tokens of the service with the largest KV. `token` is what a
    /// token's KV takes (bytes), by service.
    ///
    /// # Errors
    /// A service whose tokens take nothing.
    pub fn new(bytes: u64, token: Vec<u64>) -> Result<Self, PoolError> {
        let largest = token.iter().copied().max().unwrap_or(1);
        Self::of_page(bytes, largest.saturating_mul(TOKENS_A_PAGE), token)
    }

    /// The same with pages of so many bytes.
    ///
    /// # Errors
    /// A service whose tokens take nothing, or more than a page.
    pub fn of_page(bytes: u64, page: u64, token: Vec<u64>) -> Result<Self, PoolError> {
        for (service, &token) in token.iter().enumerate() {
            let service = service as u16;
            if token == 0 {
                return Err(PoolError::NoBytes(service));
            }
            if token > page {
                return Err(PoolError::SmallPage { service, token, page });
            }
        }
        let pages = Pages::new(bytes / page.max(1), token.iter().map(|t| page / t).collect());
        Ok(Self { pages, page, token, held: BTreeMap::new() })
    }

    /// The pages.
    #[must_use]
    pub fn pages(&self) -> &Pages {
        &self.pages
    }

    /// Pages that nobody holds.
    #[must_use]
    pub fn free(&self) -> u64 {
        self.pages.all() - self.pages.used()
    }

    /// Bytes of a page.
    #[must_use]
    pub fn page_bytes(&self) -> Bytes {
        Bytes(self.page as f64)
    }

    /// What a token's KV takes.
    #[must_use]
    pub fn token_bytes(&self, service: ServiceNo) -> Option<BytesPerToken> {
        self.token.get(usize::from(service.0)).map(|t| Bytes(*t as f64).per_token())
    }

    /// Pages that so many tokens of a service take; `None` of a service that is not here.
    #[must_use]
    pub fn needed(&self, service: ServiceNo, tokens: u64) -> Option<u64> {
        self.token.get(usize::from(service.0)).map(|_| self.pages.of(service, tokens))
    }

    /// Whether a new request's tokens would fit beside what is held.
    #[must_use]
    pub fn has_room(&self, service: ServiceNo, tokens: u64) -> bool {
        self.needed(service, tokens).is_some_and(|pages| self.pages.has(pages))
    }

    /// Sets pages aside for a request that holds none; `false`, and nothing changes, if they are not there or it does.
    pub fn reserve(&mut self, request: RequestNo, service: ServiceNo, tokens: u64) -> bool {
        if self.held.contains_key(&request) || !self.has_room(service, tokens) {
            return false;
        }
        self.held.insert(request, RequestHold { service, ..RequestHold::default() });
        self.extend(request, tokens)
    }

    /// More tokens of a request: into its last page as far as that reaches, then into new ones; `false`, and nothing
    /// changes, if they are not there or it holds nothing.
    pub fn extend(&mut self, request: RequestNo, tokens: u64) -> bool {
        let Some(held) = self.held.get_mut(&request) else { return false };
        let after = held.tokens.saturating_add(tokens);
        let more = self.pages.of(held.service, after) - held.pages;
        if !self.pages.has(more) {
            return false;
        }
        self.pages.take(more);
        (held.tokens, held.pages) = (after, held.pages + more);
        true
    }

    /// All pages of a request come back; how many tokens they held.
    pub fn release(&mut self, request: RequestNo) -> u64 {
        let RequestHold { tokens, pages, .. } = self.held.remove(&request).unwrap_or_default();
        self.pages.give(pages);
        tokens
    }

    /// Tokens a request holds.
    #[must_use]
    pub fn tokens(&self, request: RequestNo) -> u64 {
        self.held.get(&request).map_or(0, |h| h.tokens)
    }

    /// Bytes of pages that are held, of which no token's KV makes use.
    #[must_use]
    pub fn lost(&self) -> u64 {
        let lost = |h: &RequestHold| h.pages * self.page - h.tokens * self.token[usize::from(h.service.0)];
        self.held.values().map(lost).sum()
    }

    /// The most that may be lost with what is held: a page for each request, less a token, and the end of every page that
    /// is too short for another token.
    #[must_use]
    pub fn most_lost(&self) -> u64 {
        let bound = |h: &RequestHold| {
            let token = self.token[usize::from(h.service.0)];
            let rest = self.page % token;
            if h.pages == 0 { 0 } else { h.pages * rest + (self.page - rest - token) }
        };
        self.held.values().map(bound).sum()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const A: ServiceNo = ServiceNo(0);
    const B: ServiceNo = ServiceNo(1);

    #[test]
    fn a_page_holds_more_tokens_of_a_smaller_model() {
        // LLaMA-7B and LLaMA-13B: 512 KiB and 800 KiB of KV a token.
        let pool = HeldPages::new(1 << 30, vec![512 << 10, 800 << 10]).unwrap();
        assert_eq!(pool.pages().all(), 81);
        assert_eq!((pool.needed(A, 25), pool.needed(A, 26)), (Some(1), Some(2)));
        assert_eq!((pool.needed(B, 32), pool.needed(ServiceNo(2), 1)), (Some(2), None));
    }

    #[test]
    fn what_does_not_fit_changes_nothing() {
        let mut pool = HeldPages::of_page(40, 10, vec![1, 3]).unwrap();
        assert!(pool.reserve(RequestNo(1), A, 25));
        assert!(!pool.reserve(RequestNo(1), A, 1), "it holds some already");
        assert!(!pool.reserve(RequestNo(2), B, 4), "two pages: one is there");
        assert!(pool.extend(RequestNo(1), 5), "into its last page");
        assert_eq!((pool.free(), pool.lost()), (1, 0));
        assert!(!pool.extend(RequestNo(1), 11));
        assert!(!pool.extend(RequestNo(3), 1), "it holds none");
        assert_eq!((pool.free(), pool.tokens(RequestNo(1))), (1, 30));
        assert!(pool.reserve(RequestNo(2), B, 1));
        assert_eq!((pool.free(), pool.lost(), pool.most_lost()), (0, 7, 7 + 9));
        assert_eq!((pool.release(RequestNo(1)), pool.release(RequestNo(1)), pool.free()), (30, 0, 3));
    }

    #[test]
    fn pools_that_cannot_be_are_refused() {
        assert_eq!(HeldPages::new(100, vec![1, 0]).unwrap_err(), PoolError::NoBytes(1));
        let small = HeldPages::of_page(100, 10, vec![11]).unwrap_err();
        assert_eq!(small.to_string(), "a token of service 0 takes 11 bytes, a page has 10");
        assert_eq!(HeldPages::new(100, Vec::new()).unwrap().needed(A, 1), None);
    }
}
