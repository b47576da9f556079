//! The shop that oversells. Buyers are processes of their own; of every article there is one piece
//! less than there are buyers. Four rounds: without a lock; with a lock; with a lock and a holder
//! that is paused past its lease; and the same with a fence at the stock.
//!
//! `cargo run -p flash_sale`, and `-- --url postgres://…` for another shop than one in SQLite.

mod buyer;
mod report;
mod round;
mod shop;
mod sweeper;

use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Context, Result};
use clap::Parser;

use crate::report::Report;
use crate::round::{Round, Sale};
use crate::sweeper::Sweeper;

/// Sells more than there is, and then no more.
#[derive(Parser)]
#[command(name = "flash_sale")]
struct Args {
    /// Where the stock is and the locks are: postgres://, mysql:// or redis://; if not given, in
    /// files of SQLite. The shop is removed at the end, also after Ctrl-C; of the locks the tables
    /// `tenure_…` stay in a database.
    #[arg(long)]
    url: Option<String>,
    /// How many processes buy.
    #[arg(long, default_value_t = 6, value_parser = clap::value_parser!(u32).range(2..=100))]
    buyers: u32,
    /// How many articles are sold, one after the other.
    #[arg(long, default_value_t = 8, value_parser = clap::value_parser!(u32).range(1..=1000))]
    articles: u32,
    /// The figures as JSON.
    #[arg(long)]
    json: bool,
}

fn main() -> ExitCode {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let done =
        runtime.context("no runtime").and_then(|runtime| match (buyer::job(), sweeper::job()) {
            (Some(job), _) => runtime.block_on(buyer::buy(job)).map(|()| true),
            (_, Some(job)) => runtime.block_on(sweeper::sweep(job)).map(|()| true),
            _ => runtime.block_on(sell(Args::parse())),
        });
    match done {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("flash_sale: {}", explain(&error));
            ExitCode::FAILURE
        }
    }
}

/// The error and what is behind it; some of them say already what is behind them.
fn explain(error: &anyhow::Error) -> String {
    error.chain().map(ToString::to_string).fold(String::new(), |said, cause| {
        match (said.is_empty(), said.contains(&cause)) {
            (true, _) => cause,
            (_, true) => said,
            _ => format!("{said}: {cause}"),
        }
    })
}

/// All rounds; says whether lock and fence kept their promise.
async fn sell(args: Args) -> Result<bool> {
    let folder = tempfile::tempdir()?;
    let (shop, locks) = match args.url {
        Some(url) => (url.clone(), url),
        None => {
            let path = folder.path().display();
            (format!("sqlite://{path}/shop.db"), format!("sqlite://{path}/locks.db"))
        }
    };
    // What can be wrong with a URL is said before anything is sold.
    shop::recognize(&shop)?;
    drop(tenure::connect(&locks).await?);
    let _sweeper = Sweeper::start(&shop, folder.path())?;
    let sale = Sale { shop, locks, buyers: args.buyers, articles: args.articles, lease: LEASE };
    let mut report = Report::new(&sale, !args.json);
    for round in Round::ALL {
        let outcome = round.run(&sale, &mut report).await?;
        report.add(round, outcome);
    }
    report.print();
    Ok(report.is_sound())
}

/// Short, so that a pause past it does not take long to watch.
const LEASE: Duration = Duration::from_secs(1);
