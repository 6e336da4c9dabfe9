//! The terminal of `tsnode top`: drawn again with every beat and every key, and given back as it was, however the verb ends.

use super::{
    frame::{self, FrameLook, Theme},
    screen::{After, Screen},
    snapshot::Snapshot,
};
use crate::{
    cli::exit::{Exit, ExitKind},
    plain,
    platform::Signals,
};
use crossterm::event::{Event, EventStream, KeyEvent, KeyEventKind};
use futures::StreamExt;
use ratatui::DefaultTerminal;
use std::io;
use std::time::{Duration, Instant};
use tokio::sync::watch;
use tokio::time::{MissedTickBehavior, interval};

/// Gives the terminal back: also where what is drawn panics, or the task ends early.
struct Restored;

impl Drop for Restored {
    fn drop(&mut self) {
        // Where the terminal itself has gone there is nothing to give back, and nobody to tell.
        let _ = ratatui::try_restore();
    }
}

fn failed(error: &io::Error) -> Exit {
    Exit::new(ExitKind::Other, format!("the terminal: {}; tsnode top --once needs none", plain::io_error(error)))
}

/// Until a key or a signal ends it.
pub(super) async fn show(mut snapshots: watch::Receiver<Snapshot>, every: Duration, theme: Theme) -> Result<(), Exit> {
    let mut ended = Signals::beside_keys().map_err(|e| failed(&e))?;
    let _restored = Restored;
    let mut terminal = ratatui::try_init().map_err(|e| failed(&e))?;
    let (mut screen, mut keys, mut beat) = (Screen::default(), EventStream::new(), interval(every));
    beat.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        tokio::select! {
            _ = beat.tick() => {}
            () = ended.next() => return Ok(()),
            key = keys.next() => match key {
                Some(Ok(Event::Key(key))) if key.kind != KeyEventKind::Release => {
                    if press(&mut screen, key, &snapshots.borrow()) == After::Quit {
                        return Ok(());
                    }
                }
                // The window has another size, or the like.
                Some(Ok(_)) => {}
                Some(Err(error)) => return Err(failed(&error)),
                None => return Ok(()),
            },
        }
        let snapshot = snapshots.borrow_and_update().clone();
        draw(&mut terminal, &snapshot, &screen, theme).map_err(|e| failed(&e))?;
    }
}

fn press(screen: &mut Screen, key: KeyEvent, snapshot: &Snapshot) -> After {
    let pane = screen.focus();
    let table = screen.arrange(pane, pane.table(snapshot));
    screen.on_key(key, table.columns.len(), table.rows.len())
}

fn draw(terminal: &mut DefaultTerminal, snapshot: &Snapshot, screen: &Screen, theme: Theme) -> io::Result<()> {
    let look = FrameLook { screen, theme, now: Instant::now(), has_keys: true };
    let drawn = terminal.draw(|window| {
        let area = window.area();
        frame::draw(window.buffer_mut(), area, snapshot, look);
    });
    drawn.map(drop)
}
