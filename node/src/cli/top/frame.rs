//! Draws one frame of `tsnode top`: a function of what is known, of what a person has chosen to see, and of the window.

use super::{
    header,
    panes::Pane,
    screen::Screen,
    snapshot::{Feed, Snapshot},
    table::{ColumnFit, GAP, PaneTable, RowMood, TableRow},
};
use crate::cli::text_layout::{fitted, harmless, padded, width};
use ratatui::{
    buffer::Buffer,
    layout::{Alignment, Constraint, Rect},
    style::{Color, Modifier, Style},
    text::{Line, Span, Text},
    widgets::{self, Clear, Paragraph, StatefulWidget, TableState, Widget},
};
use std::time::Instant;

/// What keys do.
const HELP: &str = "\
Tab, arrows     the next list; 1 to 4 peers, groups, requests, links
Up, Down        a row; PgUp, PgDn, Home, End (or j, k, g, G)
Enter           this list alone, and all again
s, S            sort by the next column; the other way round
/               only rows with a text in them; Esc shows all again
?               this; any key goes on
q, Ctrl-C       end

RUN, WAIT       requests that are computed, and that wait for their turn
KV %            of the memory for requests under way, how much is used
STEP, TOK/S     how long one step of all answers takes; tokens a second
prefill         computes prompts; decode: answers; mixed: both
spare, silent   lends, and no plan uses it; missed, and not given up yet";
/// What keys do, in a line.
const KEYS: &str = "q end  ? keys  Tab next  s sort  / filter  Enter alone";
/// Lines of a list besides its rows.
const TITLE: u16 = 1;
/// In a window of so few lines there is one line on this machine.
const SHORT: u16 = 20;

/// What moods and states look like.
#[derive(Clone, Copy, Debug)]
pub(super) struct Theme {
    /// Colours are wanted.
    pub colours: bool,
}

impl Theme {
    fn mood(self, mood: RowMood) -> Style {
        match (mood, self.colours) {
            (RowMood::Quiet, _) => Style::new().add_modifier(Modifier::DIM),
            (RowMood::Bad, false) => Style::new().add_modifier(Modifier::BOLD),
            (_, false) => Style::new(),
            (RowMood::Good, true) => Style::new().fg(Color::Green),
            (RowMood::Waiting, true) => Style::new().fg(Color::Yellow),
            (RowMood::Bad, true) => Style::new().fg(Color::Red),
        }
    }
}

/// All that is drawn besides what is known.
#[derive(Clone, Copy, Debug)]
pub(super) struct FrameLook<'a> {
    pub screen: &'a Screen,
    pub theme: Theme,
    pub now: Instant,
    /// Somebody is there to press keys: lists have a mark, and there is a line on keys.
    pub has_keys: bool,
}

/// Draws all of a window.
pub(super) fn draw(buffer: &mut Buffer, area: Rect, snapshot: &Snapshot, look: FrameLook<'_>) {
    let area = area.intersection(buffer.area);
    let mut lines = area.rows();
    let Some(first) = lines.next() else { return };
    head(buffer, first, snapshot, look);
    let mut machine = header::lines(&snapshot.view);
    if look.has_keys && area.height < SHORT {
        machine.truncate(1);
    }
    for (label, text) in &machine {
        let Some(line) = lines.next() else { return };
        let shown = fitted(&format!("{}{text}", padded(label, 10)), line.width.into());
        buffer.set_string(line.x, line.y, shown, Style::new());
    }
    let used = 1 + machine.len() as u16;
    let foot = u16::from(look.has_keys && area.height > used + TITLE);
    let rest = Rect { y: area.y + used, height: area.height.saturating_sub(used + foot), ..area };
    lists(buffer, rest, snapshot, look);
    if foot > 0 {
        keys(buffer, Rect { y: area.bottom() - 1, height: 1, ..area }, look);
    }
    if look.screen.help {
        help(buffer, area);
    }
}

/// How many lines all of it takes.
pub(super) fn lines(snapshot: &Snapshot) -> u16 {
    let lists = Pane::ALL.map(|pane| wanted(&pane.table(snapshot)));
    lists.into_iter().chain([1, header::lines(&snapshot.view).len() as u16]).fold(0, u16::saturating_add)
}

fn wanted(table: &PaneTable) -> u16 {
    // Where there are none, a line says so.
    u16::try_from(table.rows.len().max(1)).unwrap_or(u16::MAX).saturating_add(TITLE)
}

/// Who is asked, what swarm it is in, and whether it still answers.
fn head(buffer: &mut Buffer, line: Rect, snapshot: &Snapshot, look: FrameLook<'_>) {
    let (feed, mood) = feed(snapshot, look.now);
    let room = usize::from(line.width);
    let feed = fitted(&feed, room * 2 / 3);
    let left = fitted(&header::title(&snapshot.view), room.saturating_sub(width(&feed) + GAP));
    buffer.set_string(line.x, line.y, left, Style::new().add_modifier(Modifier::BOLD));
    let right = line.right().saturating_sub(width(&feed) as u16);
    buffer.set_string(right, line.y, feed, look.theme.mood(mood));
}

fn feed(snapshot: &Snapshot, now: Instant) -> (String, RowMood) {
    match &snapshot.feed {
        Feed::Once => (String::new(), RowMood::Quiet),
        Feed::Live => ("live".into(), RowMood::Good),
        Feed::Polled { why } => (harmless(&format!("asked now and then: {why}")), RowMood::Waiting),
        Feed::Lost { why } => {
            let ago = now.saturating_duration_since(snapshot.heard).as_secs();
            (harmless(&format!("lost {ago} s ago, asks again: {why}")), RowMood::Bad)
        }
    }
}

/// The lists, each with a share of the window.
fn lists(buffer: &mut Buffer, area: Rect, snapshot: &Snapshot, look: FrameLook<'_>) {
    let focus = look.screen.focus();
    let panes: &[Pane] = if look.screen.is_alone { &[focus] } else { &Pane::ALL };
    let tables = panes.iter().map(|pane| {
        let table = pane.table(snapshot);
        let all = table.rows.len();
        (*pane, look.screen.arrange(*pane, table), all)
    });
    let tables: Vec<(Pane, PaneTable, usize)> = tables.collect();
    let wishes: Vec<u16> = tables.iter().map(|(_, table, _)| wanted(table)).collect();
    let focused = panes.iter().position(|pane| *pane == focus).unwrap_or(0);
    let heights = if look.screen.is_alone { vec![area.height] } else { shares(&wishes, focused, area.height) };
    let mut y = area.y;
    for ((pane, table, all), height) in tables.into_iter().zip(heights) {
        list(buffer, Rect { y, height, ..area }, (pane, table, all), look);
        y += height;
    }
}

/// Lines for each list: the one in focus grows twice as fast as the others, and none beyond what it wants.
fn shares(wishes: &[u16], focused: usize, all: u16) -> Vec<u16> {
    let (mut shares, mut left) = (vec![0; wishes.len()], all);
    while left > 0 && shares != wishes {
        for turn in 0..=wishes.len() {
            // First and last in turn: the one in focus.
            let index = if turn == 0 { focused } else { turn - 1 };
            if left > 0 && shares[index] < wishes[index] {
                shares[index] += 1;
                left -= 1;
            }
        }
    }
    shares
}

/// One list under its titles.
fn list(buffer: &mut Buffer, area: Rect, (pane, mut table, all): (Pane, PaneTable, usize), look: FrameLook<'_>) {
    if area.is_empty() {
        return;
    }
    let sort = look.screen.sort(pane);
    let count = if table.rows.len() == all { all.to_string() } else { format!("{} of {all}", table.rows.len()) };
    if let Some(first) = table.columns.first_mut() {
        first.title = format!("{} {count}", pane.title());
    }
    if let Some(sort) = sort.filter(|_| look.has_keys)
        && let Some(column) = table.columns.get_mut(sort.column)
    {
        column.title.push(if sort.descends { '↓' } else { '↑' });
    }
    if table.rows.is_empty() {
        let why = if all > 0 { "none has what is looked for; Esc shows all" } else { pane.empty() };
        let line = fitted(why, area.width.into());
        let below = area.y + TITLE;
        if below < area.bottom() {
            buffer.set_string(area.x, below, line, look.theme.mood(RowMood::Quiet));
        }
    }
    let has_focus = look.has_keys && pane == look.screen.focus();
    let widths = table.widths(area.width.into());
    let title = Style::new().add_modifier(if has_focus { Modifier::REVERSED } else { Modifier::BOLD });
    let titles = table.columns.iter().zip(&widths).filter(|(_, width)| **width > 0);
    let cells = titles.map(|(column, width)| aligned(fitted(&column.title, *width), column.fit, Style::new()));
    let header = widgets::Row::new(cells).style(title);
    let rows: Vec<widgets::Row<'_>> = table.rows.iter().map(|one| row(&table, one, &widths, look.theme)).collect();
    let marked = look.screen.marked(pane, rows.len());
    let mut state = TableState::new().with_selected(has_focus.then_some(marked));
    let constraints: Vec<Constraint> =
        widths.iter().filter(|width| **width > 0).map(|width| Constraint::Length(*width as u16)).collect();
    let shown = widgets::Table::new(rows, constraints).header(header).column_spacing(GAP as u16);
    StatefulWidget::render(
        shown.row_highlight_style(Style::new().add_modifier(Modifier::REVERSED)),
        area,
        buffer,
        &mut state,
    );
}

/// Its state, the second column, has the colour of how it is to be taken; a row of no weight has it everywhere.
fn row<'a>(table: &PaneTable, row: &TableRow, widths: &[usize], theme: Theme) -> widgets::Row<'a> {
    let texts = PaneTable::fitted(row, widths).into_iter().zip(&table.columns).enumerate();
    let style = |index: usize| match (index, row.mood) {
        (1, mood) | (_, mood @ RowMood::Quiet) => theme.mood(mood),
        _ => Style::new(),
    };
    let cells = texts.filter(|(index, _)| widths[*index] > 0);
    widgets::Row::new(cells.map(|(index, (text, column))| aligned(text, column.fit, style(index))))
}

fn aligned<'a>(text: String, fit: ColumnFit, style: Style) -> Text<'a> {
    let alignment = if fit == ColumnFit::Number { Alignment::Right } else { Alignment::Left };
    Text::from(Line::from(Span::styled(text, style))).alignment(alignment)
}

/// The last line: what keys do, or the filter.
fn keys(buffer: &mut Buffer, line: Rect, look: FrameLook<'_>) {
    let screen = look.screen;
    let text = match (screen.is_writing, screen.filter.is_empty()) {
        (true, _) => format!("/{}_  (Enter keeps it, Esc shows all)", screen.filter),
        (false, false) => format!("only rows with \"{}\" (Esc shows all)  {KEYS}", screen.filter),
        (false, true) => KEYS.into(),
    };
    buffer.set_string(line.x, line.y, fitted(&text, line.width.into()), look.theme.mood(RowMood::Quiet));
}

fn help(buffer: &mut Buffer, area: Rect) {
    let columns = HELP.lines().map(width).max().unwrap_or(0) as u16 + 4;
    let lines = HELP.lines().count() as u16 + 2;
    let (wide, high) = (columns.min(area.width), lines.min(area.height));
    let at =
        Rect { x: area.x + (area.width - wide) / 2, y: area.y + (area.height - high) / 2, width: wide, height: high };
    Clear.render(at, buffer);
    let frame = widgets::Block::bordered().title(" Keys ").padding(widgets::Padding::horizontal(1));
    Paragraph::new(HELP).block(frame).render(at, buffer);
}

/// What is drawn, as text: a line each, without what only fills.
pub(super) fn text(buffer: &Buffer) -> Vec<String> {
    let row = |cells: &[ratatui::buffer::Cell]| {
        let (mut line, mut hidden) = (String::new(), 0_usize);
        for cell in cells {
            // A wide letter hides the cell behind it.
            if hidden == 0 {
                line.push_str(cell.symbol());
            }
            hidden = hidden.max(width(cell.symbol())).saturating_sub(1);
        }
        line.trim_end().to_owned()
    };
    buffer.content.chunks(usize::from(buffer.area.width).max(1)).map(row).collect()
}
