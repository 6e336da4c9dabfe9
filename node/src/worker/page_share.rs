//! KV pages of a device whose models have one pool: how many each may have. Quotas say so
//! ([`tsnode_coordinator::policy::sharing::quotas`]); here they meet threads and the clock.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Instant;
use tsnode_coordinator::policy::{batching::ServiceNo, sharing::quotas::PageQuotas};
use tsnode_kernels::{
    engine::{Engine, EngineError},
    pages::PageCount,
};

/// What a model has of a device's pages.
#[derive(Clone)]
pub struct PageShare {
    device: Arc<Shared>,
    service: ServiceNo,
}

/// Of all its models.
struct Shared {
    quotas: Mutex<PageQuotas>,
    began: Instant,
}

/// Why a sequence gets no pages.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub(super) enum NoPages {
    /// There are none, or not for this.
    #[error(transparent)]
    Engine(#[from] EngineError),
    /// What is free is set aside for others.
    #[error("{wanted} KV pages wanted of those that this device's models share, beside what is set aside for others")]
    SetAside {
        /// Needed.
        wanted: usize,
    },
    /// It would never have as many.
    #[error("{wanted} KV pages wanted, where {quota} of those that this device's models share are its model's")]
    TooLong {
        /// Needed.
        wanted: usize,
        /// All that it is sure to get.
        quota: u64,
    },
}

impl PageShare {
    /// One for each model of a device, by what it is sure to get (pages).
    #[must_use]
    pub fn of_device(quotas: &[u64]) -> Vec<Self> {
        let all = PageQuotas::new(quotas.iter().copied());
        let device = Arc::new(Shared { quotas: Mutex::new(all), began: Instant::now() });
        (0..quotas.len()).map(|n| Self { device: device.clone(), service: ServiceNo(n as u16) }).collect()
    }

    /// Refuses a sequence that grows beyond what its model is sure to get: it might wait for ever.
    pub(super) fn could_hold(&self, wanted: usize) -> Result<(), NoPages> {
        let quota = self.quotas().quota(self.service);
        if wanted as u64 <= quota { Ok(()) } else { Err(NoPages::TooLong { wanted, quota }) }
    }

    /// Has `take` take so many pages, if the model may have them now. What it can never have is no claim: another peer leads, and may
    /// ask for anything.
    pub(super) fn take(
        &self,
        engine: &mut Engine,
        wanted: usize,
        take: impl FnOnce(&mut Engine) -> Result<(), EngineError>,
    ) -> Result<(), NoPages> {
        self.could_hold(wanted)?;
        let may_take = self.quotas().asks(self.device.began.elapsed(), self.service, wanted as u64);
        if !may_take {
            return Err(NoPages::SetAside { wanted });
        }
        take(engine)?;
        self.quotas().took(self.service, wanted as u64);
        Ok(())
    }

    /// The pages that its model is sure to get, and those of them that it may count on having now or soon: what another's burst has of
    /// them is given back.
    pub(super) fn count(&self) -> PageCount {
        let quotas = self.quotas();
        let free = quotas.available(self.device.began.elapsed(), self.service) as usize;
        // Who has none is full; nothing is said by 0 of 0.
        PageCount { free, total: (quotas.quota(self.service) as usize).max(1) }
    }

    /// Its model's sequences use so many pages now.
    pub(super) fn uses(&self, pages: usize) {
        self.quotas().uses(self.service, pages as u64);
    }

    fn quotas(&self) -> MutexGuard<'_, PageQuotas> {
        // They are whole whenever the lock is free.
        self.device.quotas.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tsnode_kernels::engine::{EngineConfig, Threads};
    use tsnode_protocol::KvDtype;

    #[test]
    fn a_model_has_what_others_leave_and_gets_its_own_back() {
        let config = EngineConfig { threads: Threads::together(1), pool_bytes: 0, kv_dtype: KvDtype::F16 };
        let mut engine = Engine::new(config).unwrap();
        let shares = PageShare::of_device(&[8, 8]);
        let mut takes = |n: usize, wanted: usize| shares[n].take(&mut engine, wanted, |_| Ok(()));
        assert_eq!((takes(0, 8), takes(0, 6)), (Ok(()), Ok(())));
        assert_eq!(takes(0, 1), Err(NoPages::SetAside { wanted: 1 }));
        assert_eq!((takes(1, 2), takes(1, 4)), (Ok(()), Err(NoPages::SetAside { wanted: 4 })));
        shares[0].uses(11);
        assert_eq!(takes(0, 1), Err(NoPages::SetAside { wanted: 1 }), "the other one waits for four");
        shares[0].uses(10);
        let too_long = Err(NoPages::TooLong { wanted: 9, quota: 8 });
        assert_eq!(takes(0, 9), too_long, "and the other one's claim is not behind it");
        assert_eq!(takes(1, 4), Ok(()));
        shares[0].uses(4);
        assert_eq!(takes(1, 3), Ok(()), "nobody has claimed nine");
        assert_eq!(shares[1].could_hold(8), Ok(()));
        assert_eq!(shares[1].could_hold(9), Err(NoPages::TooLong { wanted: 9, quota: 8 }));
    }

    #[test]
    fn what_others_have_of_its_quota_does_not_make_an_idle_model_look_full() {
        let shares = PageShare::of_device(&[8, 8, 0]);
        shares[0].uses(14);
        let counts: Vec<_> = shares.iter().map(PageShare::count).collect();
        assert_eq!(counts, [(0, 8), (8, 8), (0, 1)].map(|(free, total)| PageCount { free, total }));
    }

    #[test]
    fn what_was_not_taken_is_not_used() {
        let config = EngineConfig { threads: Threads::together(1), pool_bytes: 0, kv_dtype: KvDtype::F16 };
        let mut engine = Engine::new(config).unwrap();
        let shares = PageShare::of_device(&[8, 8]);
        let failed = shares[0].take(&mut engine, 8, |_| Err(EngineError::NoPrefix));
        assert_eq!(failed, Err(NoPages::Engine(EngineError::NoPrefix)));
        assert_eq!(shares[0].take(&mut engine, 8, |_| Ok(())), Ok(()));
    }
}
