//! What any text file can get wrong: white space, forbidden words, width.

/// Faults that any text can have.
pub(super) fn faults(name: &str, text: &str) -> Vec<String> {
    let mut faults = Vec::new();
    // Written in two parts, so that this file does not find itself.
    let forbidden =
        [concat!("TO", "DO"), concat!("FIX", "ME"), concat!("dbg", "!("), concat!("/ro", "ot/")];
    for (number, line) in text.lines().enumerate() {
        let mut fault = |what: &str| faults.push(format!("{name}:{}: {what}", number + 1));
        if line.ends_with([' ', '\t']) {
            fault("trailing space");
        }
        if line.contains('\t') && !name.ends_with(".sh") {
            fault("tab");
        }
        if let Some(word) = forbidden.iter().find(|word| line.contains(**word)) {
            fault(&format!("`{word}`"));
        }
        // A row of a table cannot be broken, and neither can markup or JSON in a raw string.
        let row = line.contains("// |") || line.contains("//! |") || line.contains("/// |");
        let raw = line.contains("r#\"") || line.starts_with("{\"");
        if name.ends_with(".rs") && !row && !raw && line.chars().count() > 100 {
            fault("longer than 100 columns");
        }
    }
    faults
}
