//! A nightly job on many machines, without async: whoever comes first does it, the others leave.

use tenure::Attempt;

fn main() -> tenure::Result<()> {
    let locks = tenure::blocking::connect("memory:")?;
    let Attempt::Granted(guard) = locks.lock("nightly-report").try_acquire()? else {
        println!("somebody else is at it");
        return Ok(());
    };
    guard.on_lost(|lost| {
        eprintln!("{lost}");
        std::process::exit(76);
    });
    for page in 1..=3 {
        guard.check()?;
        println!("page {page}");
    }
    guard.release()
}
