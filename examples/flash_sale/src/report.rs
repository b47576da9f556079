//! The progress of the sale, and the table at the end.

use std::io::{IsTerminal, Write};

use serde_json::json;

use crate::round::{Outcome, Round, Sale};

/// The outcomes of the rounds so far.
pub(crate) struct Report {
    stock: u32,
    pauses: u32,
    table: bool,
    lines: bool,
    rows: Vec<(Round, Outcome)>,
}

impl Report {
    pub(crate) fn new(sale: &Sale, table: bool) -> Report {
        let stock = sale.articles * (sale.buyers - 1);
        let lines = std::io::stderr().is_terminal();
        eprintln!(
            "{} buyers, {} articles of {} pieces each: one too few. Lock and stock: {}",
            sale.buyers,
            sale.articles,
            sale.buyers - 1,
            sale.shop.split("://").next().unwrap_or_default()
        );
        Report { stock, pauses: sale.articles, table, lines, rows: Vec::new() }
    }

    /// Reports that this number of articles of the round has been sold.
    pub(crate) fn progress(&mut self, round: Round, articles: u32, sold: u32) {
        let number = self.rows.len() + 1;
        let name = round.name();
        let all = self.pauses;
        if self.lines {
            eprint!("\r{number}/4 {name}: article {articles} of {all}, {sold} sold\x1b[K");
            if articles == all {
                eprintln!();
            }
            // A closed stderr is no reason to stop.
            std::io::stderr().flush().ok();
        } else if articles == all {
            eprintln!("{number}/4 {name}: {articles} articles, {sold} sold");
        }
    }

    pub(crate) fn add(&mut self, round: Round, outcome: Outcome) {
        self.rows.push((round, outcome));
    }

    pub(crate) fn print(&self) {
        if self.table {
            println!("\n{:42}{:>7}{:>7}{:>10}{:>9}", "", "stock", "sold", "oversold", "refused");
            for (round, outcome) in &self.rows {
                println!(
                    "{:42}{:>7}{:>7}{:>10}{:>9}",
                    round.name(),
                    self.stock,
                    outcome.sold,
                    self.oversold(outcome),
                    outcome.refused
                );
            }
            return;
        }
        let rows = self.rows.iter().map(|(round, outcome)| {
            json!({
                "round": round.name(), "stock": self.stock, "sold": outcome.sold,
                "oversold": self.oversold(outcome), "refused": outcome.refused,
            })
        });
        println!("{}", json!(rows.collect::<Vec<_>>()));
    }

    /// Whether nothing was oversold in the rounds where that is guaranteed.
    pub(crate) fn is_sound(&self) -> bool {
        let guaranteed = [Round::Lock, Round::Fence];
        let mut rows = self.rows.iter().filter(|(round, _)| guaranteed.contains(round));
        rows.all(|(_, outcome)| self.oversold(outcome) == 0)
    }

    fn oversold(&self, outcome: &Outcome) -> i64 {
        i64::from(outcome.sold) - i64::from(self.stock)
    }
}
