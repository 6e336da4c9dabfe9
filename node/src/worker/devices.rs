//! The devices of this peer: their compute threads, and what each last said of its pages. Nobody waits for a thread that is asked:
//! it may be busy, or hang.

use super::compute::Compute;
use std::time::Duration;
use tokio::sync::{mpsc, watch};
use tokio::time::{Instant, sleep};
use tokio_util::{sync::CancellationToken, task::TaskTracker};
use tsnode_coordinator::policy::sharing::device_use::ServiceUse;
use tsnode_kernels::{cuda::GpuError, engine::Engine, load::InUse, pages::PageCount};

/// How often a compute thread is asked for its pages.
const LOOK: Duration = Duration::from_millis(250);
/// A compute thread that does not answer for so long hangs: no step takes nearly that long. What is led there is not up then.
const HANGS: Duration = Duration::from_secs(10);

/// What a compute thread said, and when.
#[derive(Clone, Copy, Debug)]
struct DeviceReport {
    pages: PageCount,
    in_use: InUse,
    at: Instant,
}

/// A device whose GPU does nothing any more.
#[derive(Debug)]
pub(super) struct Lost {
    /// Its place in the advert.
    pub device: u16,
    /// Why.
    pub why: GpuError,
}

struct WatchedDevice {
    compute: Compute,
    said: watch::Receiver<Option<DeviceReport>>,
}

/// Those of one model, in the order of the advert.
pub(super) struct ModelDevices(Vec<WatchedDevice>);

impl ModelDevices {
    /// Asks them from now on, until `stop`; one that is lost is told on the channel, once.
    pub fn start(
        computes: Vec<Compute>,
        tasks: &TaskTracker,
        stop: &CancellationToken,
        losses: &mpsc::Sender<Lost>,
    ) -> Self {
        let known = computes.into_iter().enumerate().map(|(device, compute)| {
            let (say, said) = watch::channel(None);
            let (asked, losses, stop) = (compute.clone(), losses.clone(), stop.clone());
            tasks.spawn(async move {
                let why = tokio::select! {
                    () = stop.cancelled() => return,
                    why = ask(asked, say) => why,
                };
                // The host being gone, nobody plans with this peer.
                let _ = losses.send(Lost { device: device as u16, why }).await;
            });
            WatchedDevice { compute, said }
        });
        Self(known.collect())
    }

    /// The compute thread of a device; none where there is no such device.
    pub fn compute(&self, device: u16) -> Option<&Compute> {
        self.0.get(usize::from(device)).map(|known| &known.compute)
    }

    /// Whether a device's thread has said nothing for too long.
    pub fn hangs(&self, device: u16) -> bool {
        let said = self.0.get(usize::from(device)).and_then(|known| *known.said.borrow());
        said.is_some_and(|said| said.at.elapsed() > HANGS)
    }

    /// Pages of a device: where its models share them, those of this one. None while it has said nothing.
    pub fn pages_of(&self, device: u16) -> PageCount {
        if let Some(share) = self.compute(device).and_then(Compute::share) {
            return share.count();
        }
        let said = self.0.get(usize::from(device)).and_then(|known| *known.said.borrow());
        said.map_or(PageCount { free: 0, total: 0 }, |said| said.pages)
    }

    /// What its model has had of all devices.
    pub fn used(&self) -> ServiceUse {
        self.0.iter().map(|known| known.compute.used()).sum()
    }

    /// Pages of all devices, and memory they take.
    pub fn pages(&self) -> (PageCount, InUse) {
        let (mut pages, mut in_use) = (PageCount { free: 0, total: 0 }, InUse::default());
        for said in self.0.iter().filter_map(|known| *known.said.borrow()) {
            pages.free += said.pages.free;
            pages.total += said.pages.total;
            in_use.weights += said.in_use.weights;
            in_use.kv += said.in_use.kv;
        }
        (pages, in_use)
    }
}

/// Knows a device's pages, a moment ago, until its GPU is lost.
async fn ask(compute: Compute, say: watch::Sender<Option<DeviceReport>>) -> GpuError {
    let look = |engine: &mut Engine| engine.check_gpus().map(|()| (engine.pages(), engine.in_use()));
    loop {
        match compute.call(look).await {
            Ok(Ok((pages, in_use))) => drop(say.send_replace(Some(DeviceReport { pages, in_use, at: Instant::now() }))),
            Ok(Err(why)) => return why,
            // A job that panicked is not this one; a thread that is gone goes with the process.
            Err(_) => {}
        }
        sleep(LOOK).await;
    }
}
