//! `tenure lab simulate`: seeded schedules of faults on a virtual clock.

use std::path::PathBuf;
use std::time::Duration;

use tenure_lab::picture;
use tenure_lab::simulation::{self, Campaign};
use tenure_lab::verdict::Judgement;

use super::run::write;
use crate::exit;
use crate::failure::Failure;
use crate::output::{self, Harmless, Paint};

/// Run seeded schedules of faults on the library's core, on a virtual clock
///
/// Delays, losses, stops, crashes and clock jumps, decided by a seed; needs no server. Exit code: 0
/// no schedule broke a guarantee, 1 one did, and its seed is printed.
#[derive(Debug, clap::Args)]
#[command(after_help = "Example: tenure lab simulate --seconds 60")]
pub(crate) struct Simulate {
    /// Run this seed alone and draw it; with --schedules or --seconds, begin with it
    #[arg(long, value_name = "N")]
    seed: Option<u64>,

    /// Run this many schedules [default: 10000]
    #[arg(long, value_name = "N")]
    schedules: Option<u64>,

    /// Run schedules for this many seconds
    #[arg(long, value_name = "N", conflicts_with = "schedules")]
    seconds: Option<u64>,

    /// Write the history of the seed, or of the one that failed, to this file
    #[arg(long, value_name = "FILE")]
    history: Option<PathBuf>,

    /// Write the picture of the seed, or of the one that failed, to this file
    #[arg(long, value_name = "FILE")]
    html: Option<PathBuf>,
}

pub(super) fn run(args: &Simulate) -> Result<u8, Failure> {
    if let (Some(seed), None, None) = (args.seed, args.schedules, args.seconds) {
        return run_seed(args, seed);
    }
    let time = args.seconds.map(Duration::from_secs);
    let count = args.schedules.unwrap_or(if time.is_some() { u64::MAX } else { 10_000 });
    let campaign = simulation::campaign(args.seed.unwrap_or(0), count, time);
    output::print(&summary(&campaign))?;
    match campaign.failure {
        None => Ok(exit::DONE),
        Some((seed, _)) => run_seed(args, seed),
    }
}

fn summary(campaign: &Campaign) -> String {
    let seconds = campaign.took.as_secs_f64();
    let rate = campaign.schedules as f64 / seconds.max(1e-9);
    let Campaign { schedules, grants, faults, lost, .. } = campaign;
    let mut text = format!(
        "{schedules} schedules in {seconds:.1} s, {rate:.0} per second\n\
         {grants} grants, {faults} faults\n\
         {lost} updates lost without a fence, 0 with one on reading and writing\n"
    );
    if let Some((seed, why)) = &campaign.failure {
        text = format!("seed {seed} broke a guarantee: {why}\n");
    }
    text
}

/// Runs one seed and draws it.
fn run_seed(args: &Simulate, seed: u64) -> Result<u8, Failure> {
    let result = simulation::run(seed);
    let (history, report) = (&result.history, &result.report);
    let judgement = Judgement::of(&history.header, report);
    let colour = Paint::stdout().wanted();
    output::print(&picture::terminal(history, report, &judgement, colour))?;
    if let Some(path) = &args.history {
        write(path, |file| history.write(file))?;
    }
    if let Some(path) = &args.html {
        let page = picture::html(history, report, &judgement);
        write(path, |file| Ok(file.write_all(page.as_bytes())?))?;
    }
    match &result.failure {
        None => Ok(exit::DONE),
        Some(why) => {
            let again = format!("tenure lab simulate --seed {seed}");
            output::say(&format!(
                "seed {seed} broke a guarantee: {}; again: {again}",
                Harmless(why)
            ));
            Ok(exit::NO)
        }
    }
}
