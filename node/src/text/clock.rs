//! The date that a template may ask for, written as Python writes it.

use jiff::{
    Zoned,
    fmt::strtime::{BrokenDownTime, Config, PosixCustom},
};

/// Says what time it is. It is given to a template, so that in a test the day is always the same.
pub type Clock = fn() -> Zoned;

/// By the clock and the time zone of this machine, as transformers has it.
pub fn here() -> Zoned {
    Zoned::now()
}

/// What Python's `datetime.now().strftime(format)` gives: days and months are English, and what is no directive stays as it is.
pub fn strftime(now: &Zoned, format: &str) -> Result<String, jiff::Error> {
    let config = Config::new().custom(PosixCustom::new()).lenient(true);
    BrokenDownTime::from(now).to_string_with_config(&config, as_jiff_reads(format))
}

/// Python writes microseconds in six digits, and nothing for the zone of a time that was given none.
fn as_jiff_reads(format: &str) -> String {
    let parts = format.split("%%").map(|part| {
        let part = part.replace("%f", "%6f");
        ["%z", "%:z", "%Z"].iter().fold(part, |part, zone| part.replace(zone, ""))
    });
    parts.collect::<Vec<_>>().join("%%")
}

#[cfg(test)]
mod tests {
    use super::*;
    use jiff::{civil::date, tz::TimeZone};

    #[test]
    fn dates_are_written_as_python_does() {
        let now = date(2025, 3, 9).at(8, 5, 7, 1_200_000).to_zoned(TimeZone::fixed(jiff::tz::offset(2))).unwrap();
        let as_python_does = [
            ("%d %b %Y", "09 Mar 2025"),
            ("%A, %B %-d, %Y", "Sunday, March 9, 2025"),
            ("%Y-%m-%d %H:%M:%S.%f", "2025-03-09 08:05:07.001200"),
            ("%c | %x | %X", "Sun Mar  9 08:05:07 2025 | 03/09/25 | 08:05:07"),
            ("%a %y %I %p %j %U %w", "Sun 25 08 AM 068 10 0"),
            ("[%z%Z] 100%% %%f %", "[] 100% %f %"),
            ("\u{1f4c5} %e", "\u{1f4c5}  9"),
            ("", ""),
        ];
        for (format, expected) in as_python_does {
            assert_eq!(strftime(&now, format).unwrap(), expected, "{format}");
        }
    }
}
