//! Ctrl-C, and whatever else asks a command to end, while it has peers running, or files that nobody else removes.

use crate::{
    cli::exit::{Exit, ExitKind},
    platform::Signals,
};
use futures::{
    StreamExt,
    stream::{self, BoxStream},
};
use tsnode_testnet::Testnet;

/// Signals that ask the command to end, from when this is made on. One that comes while none is waited for is not lost: whatever is
/// waited for next hears it. Once a signal was waited for, no other would end the process by itself.
pub(super) struct Interrupts(BoxStream<'static, ()>);

impl Interrupts {
    /// Where the system lets none be heard, work goes on to its end.
    pub fn heard() -> Self {
        let next = |mut signals: Signals| async move {
            signals.next().await;
            Some(((), signals))
        };
        match Signals::to_end() {
            Ok(signals) => Self(stream::unfold(signals, next).boxed()),
            Err(_) => Self(stream::pending().boxed()),
        }
    }

    /// Until the next one.
    pub async fn next(&mut self) {
        if self.0.next().await.is_none() {
            std::future::pending().await
        }
    }

    /// This, unless somebody interrupts it, or has: what was begun for it ends.
    pub async fn unless<T>(&mut self, work: impl Future<Output = Result<T, Exit>>) -> Result<T, Exit> {
        tokio::select! {
            biased;
            () = self.next() => Err(interrupted()),
            done = work => done,
        }
    }

    /// Lets a swarm's peers leave; who interrupts that does not want to wait for them, and they are killed.
    pub async fn down(&mut self, net: Testnet) -> Result<(), Exit> {
        let mut is_interrupted = false;
        let hurry = async {
            self.next().await;
            is_interrupted = true;
        };
        net.down_unless(hurry).await?;
        if is_interrupted { Err(interrupted()) } else { Ok(()) }
    }
}

fn interrupted() -> Exit {
    Exit::new(ExitKind::Other, "interrupted")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn one_that_came_while_none_was_waited_for_is_heard_by_what_is_begun_next() {
        let once = stream::iter([()]).chain(stream::pending());
        let mut interrupts = Interrupts(once.boxed());
        let ended = interrupts.unless(async { Ok(7) }).await;
        assert_eq!(ended.map_err(|exit| (exit.kind, exit.message)), Err((ExitKind::Other, "interrupted".into())));
        assert_eq!(interrupts.unless(async { Ok(7) }).await.ok(), Some(7), "it was one");
    }
}
