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

/// Play seeded schedules of faults on the library's own core, on a virtual clock
///
/// Delays, losses, stops, crashes and clock jumps, as a seed decides; needs no server. Exit code: 0
/// no schedule broke a promise, 1 one did, and its seed is said.
#[derive(Debug, clap::Args)]
#[command(after_help = "Example: tenure lab simulate --seconds 60")]
pub(crate) struct Simulate {
    /// Play this seed alone and draw it; with --schedules or --seconds, begin with it
    #[arg(long, value_name = "N")]
    seed: Option<u64>,

    /// Play so many schedules [default: 10000]
    #[arg(long, value_name = "N")]
    schedules: Option<u64>,

    /// Play schedules for so many seconds
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
        return one(args, seed);
    }
    let time = args.seconds.map(Duration::from_secs);
    let count = args.schedules.unwrap_or(if time.is_some() { u64::MAX } else { 10_000 });
    let seen = simulation::campaign(args.seed.unwrap_or(0), count, time);
    output::print(&summary(&seen))?;
    match seen.failure {
        None => Ok(exit::DONE),
        Some((seed, _)) => one(args, seed),
    }
}

fn summary(seen: &Campaign) -> String {
    let seconds = seen.took.as_secs_f64();
    let rate = seen.schedules as f64 / seconds.max(1e-9);
    let Campaign { schedules, grants, faults, lost, .. } = seen;
    let mut text = format!(
        "{schedules} schedules in {seconds:.1} s, {rate:.0} per second\n\
         {grants} grants, {faults} faults\n\
         {lost} updates lost without a fence, 0 with one on reading and writing\n"
    );
    if let Some((seed, why)) = &seen.failure {
        text = format!("seed {seed} broke a promise: {why}\n");
    }
    text
}

/// One seed, with its picture.
fn one(args: &Simulate, seed: u64) -> Result<u8, Failure> {
    let played = simulation::play(seed);
    let (history, report) = (&played.history, &played.report);
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
    match &played.failure {
        None => Ok(exit::DONE),
        Some(why) => {
            let again = format!("tenure lab simulate --seed {seed}");
            output::say(&format!("seed {seed} broke a promise: {}; again: {again}", Harmless(why)));
            Ok(exit::NO)
        }
    }
}
