//! What a person has chosen to see: which pane, in what order, of whom. Keys change it; nothing here draws or waits.

use super::{
    panes::Pane,
    table::{PaneTable, Sort},
};
use crossterm::event::{KeyCode, KeyEvent, KeyModifiers};

/// Most letters of a filter.
const FILTER: usize = 64;
/// Rows that a page key moves by.
const PAGE: usize = 10;

/// The screen as it was left by the last key.
#[derive(Clone, Debug, Default)]
pub(super) struct Screen {
    focus: usize,
    /// The row that is marked in each pane.
    marked: [usize; 4],
    sorts: [Option<Sort>; 4],
    pub filter: String,
    /// The filter is being written.
    pub is_writing: bool,
    /// Only the pane in focus is shown.
    pub is_alone: bool,
    pub help: bool,
}

/// What a key leads to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum After {
    Draw,
    Quit,
}

impl Screen {
    pub fn focus(&self) -> Pane {
        Pane::ALL[self.focus]
    }

    /// By what a pane is sorted: as it was chosen, or as usual.
    pub fn sort(&self, pane: Pane) -> Option<Sort> {
        self.sorts[pane as usize].or(pane.usual())
    }

    /// The row that is marked in a pane of so many.
    pub fn marked(&self, pane: Pane, rows: usize) -> usize {
        self.marked[pane as usize].min(rows.saturating_sub(1))
    }

    /// What is to be seen of a table.
    pub fn arrange(&self, pane: Pane, mut table: PaneTable) -> PaneTable {
        if !self.filter.is_empty() {
            table.filter(&self.filter);
        }
        if let Some(sort) = self.sort(pane) {
            table.sort(sort);
        }
        table
    }

    /// Takes a key; panes have so many columns, and rows as they are shown.
    pub fn on_key(&mut self, key: KeyEvent, columns: usize, rows: usize) -> After {
        let ends = key.modifiers.contains(KeyModifiers::CONTROL) && matches!(key.code, KeyCode::Char('c' | 'd'));
        if ends {
            return After::Quit;
        }
        if self.is_writing {
            self.write(key.code);
            return After::Draw;
        }
        let was_helping = std::mem::take(&mut self.help);
        match key.code {
            KeyCode::Char('q') => return After::Quit,
            KeyCode::Char('?' | 'h') | KeyCode::F(1) => self.help = !was_helping,
            KeyCode::Esc if was_helping => {}
            KeyCode::Esc => self.back(),
            KeyCode::Tab | KeyCode::Right => self.turn(1),
            KeyCode::BackTab | KeyCode::Left => self.turn(Pane::ALL.len() - 1),
            KeyCode::Char(digit @ '1'..='4') => self.focus = digit as usize - '1' as usize,
            KeyCode::Enter | KeyCode::Char('z') => self.is_alone = !self.is_alone,
            KeyCode::Char('/') => self.is_writing = true,
            KeyCode::Char('s') => self.sort_next(columns),
            KeyCode::Char('S' | 'r') => self.turn_round(),
            code => self.walk(code, rows),
        }
        After::Draw
    }

    /// Undoes one thing: first what is written, then what hides the others.
    fn back(&mut self) {
        if self.filter.is_empty() {
            self.is_alone = false;
        }
        self.filter.clear();
    }

    fn turn(&mut self, by: usize) {
        self.focus = (self.focus + by) % Pane::ALL.len();
    }

    fn write(&mut self, code: KeyCode) {
        match code {
            KeyCode::Enter => self.is_writing = false,
            KeyCode::Esc => {
                self.is_writing = false;
                self.filter.clear();
            }
            KeyCode::Backspace => drop(self.filter.pop()),
            KeyCode::Char(c) if !c.is_control() && self.filter.chars().count() < FILTER => self.filter.push(c),
            _ => {}
        }
    }

    /// By the next column; `S` turns it round.
    fn sort_next(&mut self, columns: usize) {
        let next = self.sort(self.focus()).map_or(0, |sort| (sort.column + 1) % columns.max(1));
        self.sorts[self.focus] = Some(Sort { column: next, descends: false });
    }

    fn turn_round(&mut self) {
        let Sort { column, descends } = self.sort(self.focus()).unwrap_or(Sort { column: 0, descends: true });
        self.sorts[self.focus] = Some(Sort { column, descends: !descends });
    }

    fn walk(&mut self, code: KeyCode, rows: usize) {
        let last = rows.saturating_sub(1);
        let at = self.marked[self.focus].min(last);
        self.marked[self.focus] = match code {
            KeyCode::Down | KeyCode::Char('j') => at + 1,
            KeyCode::Up | KeyCode::Char('k') => at.saturating_sub(1),
            KeyCode::PageDown => at + PAGE,
            KeyCode::PageUp => at.saturating_sub(PAGE),
            KeyCode::Home | KeyCode::Char('g') => 0,
            KeyCode::End | KeyCode::Char('G') => last,
            _ => at,
        }
        .min(last);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn press(screen: &mut Screen, codes: &[KeyCode]) -> After {
        let mut after = After::Draw;
        for code in codes {
            after = screen.on_key(KeyEvent::new(*code, KeyModifiers::NONE), 5, 30);
        }
        after
    }

    fn letters(text: &str) -> Vec<KeyCode> {
        text.chars().map(KeyCode::Char).collect()
    }

    #[test]
    fn tab_goes_round_and_digits_go_straight() {
        let mut screen = Screen::default();
        press(&mut screen, &[KeyCode::Tab; 5]);
        assert_eq!(screen.focus(), Pane::Groups);
        press(&mut screen, &[KeyCode::BackTab, KeyCode::Left]);
        assert_eq!(screen.focus(), Pane::Links);
        press(&mut screen, &letters("3"));
        assert_eq!(screen.focus(), Pane::Requests);
    }

    #[test]
    fn what_is_marked_stays_within_the_rows() {
        let mut screen = Screen::default();
        press(&mut screen, &[KeyCode::PageDown; 9]);
        assert_eq!((screen.marked(Pane::Peers, 30), screen.marked(Pane::Peers, 3)), (29, 2), "rows may go away");
        press(&mut screen, &[KeyCode::Up, KeyCode::PageUp]);
        assert_eq!(screen.marked(Pane::Peers, 30), 18);
        press(&mut screen, &[KeyCode::Home, KeyCode::Up]);
        assert_eq!((screen.marked(Pane::Peers, 30), screen.marked(Pane::Peers, 0)), (0, 0));
    }

    #[test]
    fn a_filter_takes_letters_that_are_commands_elsewhere() {
        let mut screen = Screen::default();
        assert_eq!(press(&mut screen, &letters("/q?s1")), After::Draw);
        assert_eq!((screen.filter.as_str(), screen.is_writing), ("q?s1", true));
        press(&mut screen, &[KeyCode::Backspace, KeyCode::Enter]);
        assert_eq!((screen.filter.as_str(), screen.is_writing), ("q?s", false));
        press(&mut screen, &[KeyCode::Esc]);
        assert_eq!(screen.filter, "");
        press(&mut screen, &letters(&format!("/{}", "x".repeat(100))));
        assert_eq!(screen.filter.len(), FILTER);
        assert_eq!(press(&mut screen, &[KeyCode::Esc, KeyCode::Char('q')]), After::Quit);
    }

    #[test]
    fn each_pane_has_its_own_order() {
        let mut screen = Screen::default();
        assert_eq!(screen.sort(Pane::Links), Some(Sort { column: 2, descends: true }));
        press(&mut screen, &letters("4S"));
        assert_eq!(screen.sort(Pane::Links), Some(Sort { column: 2, descends: false }));
        press(&mut screen, &letters("sss"));
        assert_eq!(screen.sort(Pane::Links), Some(Sort { column: 0, descends: false }));
        assert_eq!(screen.sort(Pane::Peers), Pane::Peers.usual());
        press(&mut screen, &letters("3s"));
        assert_eq!(screen.sort(Pane::Requests), Some(Sort { column: 0, descends: false }));
    }

    #[test]
    fn escape_undoes_and_control_c_ends_wherever_one_is() {
        let mut screen = Screen::default();
        press(&mut screen, &[KeyCode::Enter, KeyCode::Char('?')]);
        assert!(screen.is_alone && screen.help);
        press(&mut screen, &[KeyCode::Esc]);
        assert!(screen.is_alone && !screen.help);
        press(&mut screen, &[KeyCode::Esc]);
        assert!(!screen.is_alone);
        press(&mut screen, &letters("/x"));
        assert_eq!(screen.on_key(KeyEvent::new(KeyCode::Char('c'), KeyModifiers::CONTROL), 5, 3), After::Quit);
    }
}
