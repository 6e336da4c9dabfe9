//! Frames of snapshots: three peers as they were at work, and what is made of them.

use super::{
    frame::{self, FrameLook, Theme},
    printed,
    screen::Screen,
    snapshot::{Feed, RequestsView, Snapshot},
};
use crate::{
    cli::text_layout::width,
    view::{Readiness, SwarmView, tests::view},
};
use crossterm::event::{KeyCode, KeyEvent, KeyModifiers};
use ratatui::{Terminal, backend::TestBackend, style::Color};
use serde_json::Value;
use std::time::Duration;
use tsnode_coordinator::waiting::NotReady;
use tsnode_protocol::PeerId;

/// As `tsnode top --json` printed it, with other names.
const THREE: &str = include_str!("tests/three.json");

fn three() -> Snapshot {
    let mut said: Value = serde_json::from_str(THREE).unwrap();
    let view: SwarmView = serde_json::from_value(said["swarm"].take()).unwrap();
    let requests: RequestsView = serde_json::from_value(said).unwrap();
    Snapshot::new(view, requests, Feed::Live)
}

fn alone() -> Snapshot {
    Snapshot::new(view(), RequestsView::default(), Feed::Live)
}

/// A swarm of so many, each with links to all others.
fn many(peers: u8) -> Snapshot {
    let mut many = three();
    let one = many.view.peers[0].clone();
    many.view.peers = (0..peers)
        .map(|n| {
            let mut peer = one.clone();
            peer.id = PeerId([n; 32]);
            peer.advert.name = format!("machine-{n}");
            let links = (0..peers).filter(|to| *to != n).zip(one.advert.links.iter().cycle());
            peer.advert.links =
                links.map(|(to, link)| tsnode_protocol::Link { to: PeerId([to; 32]), ..*link }).collect();
            peer
        })
        .collect();
    many
}

fn terminal(snapshot: &Snapshot, screen: &Screen, columns: u16, lines: u16, colours: bool) -> Terminal<TestBackend> {
    let mut terminal = Terminal::new(TestBackend::new(columns, lines)).unwrap();
    let look =
        FrameLook { screen, theme: Theme { colours }, now: snapshot.heard + Duration::from_secs(7), has_keys: true };
    terminal
        .draw(|window| {
            let area = window.area();
            frame::draw(window.buffer_mut(), area, snapshot, look);
        })
        .unwrap();
    terminal
}

fn shown(snapshot: &Snapshot, screen: &Screen, columns: u16, lines: u16) -> String {
    frame::text(terminal(snapshot, screen, columns, lines, true).backend().buffer()).join("\n")
}

fn after(keys: &str) -> Screen {
    let mut screen = Screen::default();
    for c in keys.chars() {
        let code = if c == '\n' { KeyCode::Enter } else { KeyCode::Char(c) };
        screen.on_key(KeyEvent::new(code, KeyModifiers::NONE), 8, 1000);
    }
    screen
}

#[test]
fn three_peers_at_work_are_a_screen_of_80_by_24() {
    let frame = shown(&three(), &Screen::default(), 80, 24);
    let expected =
        std::fs::read_to_string(concat!(env!("CARGO_MANIFEST_DIR"), "/src/cli/top/tests/three.txt")).unwrap();
    assert!(frame.trim_end() == expected.trim_end(), "{frame}");
}

#[test]
fn every_window_has_what_has_room_and_none_is_too_small() {
    let (snapshot, crowd) = (three(), many(50));
    for (columns, lines) in [(1, 1), (8, 3), (20, 5), (40, 10), (80, 24), (132, 43), (250, 80)] {
        for snapshot in [&snapshot, &crowd, &alone()] {
            for keys in ["", "?", "\n", "/machine-4", "4\nGG"] {
                let frame = shown(snapshot, &after(keys), columns, lines);
                assert!(frame.lines().count() <= lines.into(), "{columns}×{lines}: {frame}");
                assert!(frame.lines().all(|line| width(line) <= columns.into()), "{columns}×{lines}: {frame}");
            }
        }
        if lines >= 24 {
            let frame = shown(&crowd, &Screen::default(), columns, lines);
            for title in ["PEERS 50", "GROUPS ", "REQUESTS ", "LINKS 2450"] {
                assert!(frame.lines().any(|line| line.starts_with(title)), "{columns}×{lines}: {frame}");
            }
        }
    }
}

#[test]
fn a_wide_window_shows_names_whole_and_more_columns() {
    let (narrow, wide) = (shown(&three(), &Screen::default(), 80, 24), shown(&three(), &Screen::default(), 160, 40));
    assert!(!narrow.contains("HEARD") && wide.contains("HEARD"), "{wide}");
    assert!(wide.contains("AMD EPYC"), "{wide}");
}

#[test]
fn a_peer_without_a_plan_says_what_it_waits_for() {
    let mut waits = alone();
    waits.view.readiness = Readiness::Planning;
    waits.view.waiting = Some(NotReady::NothingLent);
    let frame = shown(&waits, &Screen::default(), 80, 24);
    assert!(frame.contains("no plan yet") && frame.contains(&NotReady::NothingLent.to_string()[..20]), "{frame}");
    for said in ["nobody is known", "no plan is adopted yet", "none came to this peer", "none is measured yet"] {
        assert!(frame.contains(said), "{said}: {frame}");
    }
}

#[test]
fn a_peer_that_does_not_answer_is_said_above_what_it_said_last() {
    let mut lost = three();
    lost.feed = Feed::Lost { why: "nobody answers there".into() };
    let frame = shown(&lost, &Screen::default(), 80, 24);
    assert!(frame.lines().next().unwrap().ends_with("lost 7 s ago, asks again: nobody answers there"), "{frame}");
    assert!(frame.contains("PEERS 3"), "{frame}");
    lost.feed = Feed::Polled { why: "16 pages listen\u{1b}[2J to it".into() };
    let frame = shown(&lost, &Screen::default(), 80, 24);
    assert!(frame.contains("asked now and then: 16 pages listen\u{fffd}[2J to it"), "{frame}");
}

#[test]
fn a_filter_and_a_list_alone_are_seen() {
    let frame = shown(&many(50), &after("/machine-49\n"), 80, 24);
    assert!(frame.contains("PEERS 1 of 50") && frame.contains("only rows with \"machine-49\""), "{frame}");
    let none = shown(&three(), &after("/nobody of the name\n"), 80, 24);
    assert!(none.contains("none has what is looked for; Esc shows all"), "{none}");
    let links = shown(&many(50), &after("4\n"), 80, 24);
    assert!(links.contains("LINKS 2450") && !links.contains("PEERS"), "{links}");
    let last = shown(&many(50), &after("1\nG"), 80, 24);
    assert!(last.contains("machine-9 ") && !last.contains("machine-10 "), "the marked row is in sight: {last}");
}

#[test]
fn names_of_others_cannot_drive_the_terminal() {
    let mut snapshot = three();
    let bad = "\u{1b}]0;mine\u{7}\u{9b}2J\n";
    snapshot.view.peers.iter_mut().for_each(|peer| peer.advert.name = bad.into());
    snapshot.view.models.iter_mut().for_each(|model| model.name = bad.into());
    snapshot.view.peers[0].advert.devices[0].name = bad.into();
    snapshot.running.iter_mut().for_each(|one| (one.model, one.stage) = (bad.into(), bad.into()));
    let frames = [shown(&snapshot, &Screen::default(), 200, 60), printed(&snapshot).join("\n")];
    for frame in frames {
        assert!(!frame.chars().any(|c| c.is_control() && c != '\n'), "{frame:?}");
    }
}

#[test]
fn colour_means_a_state_and_is_left_out_where_it_is_not_wanted() {
    let colours = |wanted| {
        let terminal = terminal(&three(), &Screen::default(), 80, 24, wanted);
        let cells = terminal.backend().buffer().content.iter().filter(|cell| cell.fg != Color::Reset);
        cells.map(|cell| cell.symbol()).collect::<String>()
    };
    assert!(colours(true).contains("serves"), "{}", colours(true));
    assert_eq!(colours(false), "");
}

#[test]
fn what_is_printed_has_every_row_in_80_columns() {
    let lines = printed(&many(5));
    let frame = lines.join("\n");
    assert!(lines.iter().all(|line| width(line) <= 80), "{frame}");
    assert!((0..5).all(|n| lines.iter().any(|line| line.starts_with(&format!("machine-{n} ")))), "{frame}");
    assert!(!frame.contains("q end") && frame.contains("LINKS 20"), "{frame}");
    assert!(printed(&many(50)).len() <= 400);
}

#[test]
fn a_peer_that_falls_silent_is_said_to_be_and_one_that_is_given_up_stays_in_sight() {
    let mut shown_is = three();
    let (now, me) = (shown_is.heard, shown_is.view.me);
    let at = shown_is.view.peers.iter().position(|peer| peer.id != me).unwrap();
    let name = shown_is.view.peers[at].advert.name.clone();
    let row = |snapshot: &Snapshot| {
        let frame = shown(snapshot, &Screen::default(), 160, 40);
        frame.lines().find(|line| line.starts_with(&name)).unwrap_or_default().to_owned()
    };
    let mut late = shown_is.view.clone();
    (late.peers[at].silent, late.peers[at].silent_for) = (true, 2.0);
    shown_is.see(late.clone(), now + Duration::from_secs(2));
    let said = row(&shown_is);
    assert!(said.contains("silent") && said.contains("2 s ago"), "{said}");
    let (mut without, mut back) = (late.clone(), late);
    without.peers.remove(at);
    shown_is.see(without.clone(), now + Duration::from_secs(5));
    shown_is.see(without.clone(), now + Duration::from_secs(15));
    let said = row(&shown_is);
    assert!(said.contains("gone") && said.contains("12 s ago"), "{said}");
    let mut forgotten = shown_is.clone();
    forgotten.see(without, now + Duration::from_secs(70));
    assert_eq!(row(&forgotten), "", "nobody looks for it any more");
    back.peers[at].silent = false;
    shown_is.see(back.clone(), now + Duration::from_secs(16));
    let said = row(&shown_is);
    assert!(!said.contains("gone") && !said.contains("silent"), "{said}");
    // Who says that it leaves is not missed.
    back.peers[at].leaving = true;
    shown_is.see(back.clone(), now + Duration::from_secs(17));
    back.peers.remove(at);
    shown_is.see(back, now + Duration::from_secs(18));
    assert!(shown_is.gone.is_empty());
}
