//! `tenure ls`: one row per held key.

use tenure::{Holding, blocking};

use crate::args::Ls;
use crate::exit;
use crate::failure::Failure;
use crate::holder::{HoldersLine, ModeOf};
use crate::output::{self, Paint, Short};

pub(super) fn run(client: &blocking::Client, args: &Ls) -> Result<u8, Failure> {
    let mut holdings = client.list(&args.prefix)?;
    holdings.sort_by(|a, b| a.key.cmp(&b.key));
    if args.json {
        output::print_json(&holdings)?;
    } else if !holdings.is_empty() {
        output::print(&table(&holdings, Paint::stdout()))?;
    }
    Ok(exit::DONE)
}

fn table(holdings: &[Holding], paint: Paint) -> String {
    let titles = ["KEY", "TOKEN", "MODE", "TTL LEFT", "WAITERS", "HOLDER"].map(str::to_owned);
    let rows: Vec<_> = std::iter::once(titles).chain(holdings.iter().map(cells)).collect();
    let width = |column: usize| rows.iter().map(|row| row[column].chars().count()).max();
    let widths: [usize; 6] = std::array::from_fn(|column| width(column).unwrap_or(0));
    let mut text = String::new();
    for (number, [key, token, mode, left, waiters, holder]) in rows.iter().enumerate() {
        let [k, t, m, l, w, _] = widths;
        let line = format!("{key:k$}  {token:>t$}  {mode:m$}  {left:>l$}  {waiters:>w$}  {holder}");
        text.push_str(&if number == 0 { paint.bold(&line) } else { line });
        text.push('\n');
    }
    text
}

fn cells(holding: &Holding) -> [String; 6] {
    let holder = holding.holder();
    [
        holding.key.to_string(),
        holder.token.map_or_else(|| "-".to_owned(), |token| token.to_string()),
        ModeOf(holding).to_string(),
        holder.ttl_left.map_or_else(|| "-".to_owned(), |left| Short(left).to_string()),
        holding.waiters.len().to_string(),
        HoldersLine(holding).to_string(),
    ]
}
