//! A nightly job on many machines, without async: the first one runs it, the others exit.

use tenure::Attempt;

fn main() -> tenure::Result<()> {
    let locks = tenure::blocking::connect("memory:")?;
    let Attempt::Granted(guard) = locks.lock("nightly-report").try_acquire()? else {
        println!("another machine runs it");
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
