//! A cell beside how often it was to be measured: figures of fewer rounds say so.

use std::ops::Deref;

use crate::cost::report::{Cell, CostReport};

/// A cell, and the rounds that were asked of it.
#[derive(Debug, Clone, Copy)]
pub(in crate::html) struct Asked<'a> {
    cell: &'a Cell,
    asked: u32,
}

impl<'a> Asked<'a> {
    pub(super) fn of(report: &CostReport, cell: &'a Cell) -> Self {
        // With further services it is measured once.
        let asked = if cell.point.services.is_some() { 1 } else { report.settings.rounds };
        Self { cell, asked }
    }

    /// How many rounds count, for people.
    pub(super) fn rounds(self) -> String {
        let Self { cell, asked } = self;
        let sound = cell.sound().count();
        if self.lacks_rounds() { format!("{sound} of {asked} rounds") } else { format!("rounds: {sound}") }
    }

    /// The same in small under a figure, if some do not count; nothing of none, which is void.
    pub(in crate::html) fn note(self) -> String {
        if self.lacks_rounds() && self.sound().next().is_some() {
            format!("<br/><small>{}</small>", self.rounds())
        } else {
            String::new()
        }
    }

    /// Whether half of the rounds count, or more: what one of five has shown may have been chance.
    pub(super) fn counts_by_half(self) -> bool {
        2 * self.sound().count() >= self.rounds_asked() && self.sound().next().is_some()
    }

    fn lacks_rounds(self) -> bool {
        self.sound().count() < self.rounds_asked()
    }

    fn rounds_asked(self) -> usize {
        usize::try_from(self.asked).unwrap_or(usize::MAX)
    }
}

impl Deref for Asked<'_> {
    type Target = Cell;

    fn deref(&self) -> &Cell {
        self.cell
    }
}
