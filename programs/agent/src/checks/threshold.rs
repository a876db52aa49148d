//! Thresholds: how many results in a row it takes to change a check's status.
//!
//! Knows neither time nor how a check is run: results go in, the status comes out.

use starling_model::{CheckDefinition, CheckStatus};

/// Results in a row, and how many are needed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Threshold {
    success_before_passing: u32,
    failures_before_warning: u32,
    failures_before_critical: u32,
    successes: u32,
    failures: u32,
}

impl Threshold {
    pub(crate) fn new(definition: &CheckDefinition) -> Self {
        Self {
            success_before_passing: definition.success_before_passing,
            failures_before_warning: definition.failures_before_warning,
            failures_before_critical: definition.failures_before_critical,
            successes: 0,
            failures: 0,
        }
    }

    /// Takes a result; returns the status that the check has then, `current` being the one it has now.
    ///
    /// A run that warns counts as a success, as Consul counts it: the application has answered.
    pub(crate) fn observe(&mut self, result: CheckStatus, current: CheckStatus) -> CheckStatus {
        match result {
            CheckStatus::Passing | CheckStatus::Warning => {
                self.failures = 0;
                self.successes = self.successes.saturating_add(1);
                if self.successes >= self.success_before_passing { result } else { current }
            }
            CheckStatus::Critical => {
                self.successes = 0;
                self.failures = self.failures.saturating_add(1);
                if self.failures >= self.failures_before_critical {
                    CheckStatus::Critical
                } else if self.failures >= self.failures_before_warning {
                    // A check that is critical already does not get better by failing once more.
                    current.max(CheckStatus::Warning)
                } else {
                    current
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use starling_model::CheckKind;

    use super::*;

    /// Plays results (`p`, `w`, `f`) and returns the statuses (`P`, `W`, `C`), beginning at critical.
    fn play(passing: u32, warning: u32, critical: u32, results: &str) -> String {
        let mut threshold = Threshold::new(&CheckDefinition {
            kind: CheckKind::Ttl { ttl: Duration::ZERO },
            interval: Duration::ZERO,
            timeout: Duration::ZERO,
            success_before_passing: passing,
            failures_before_warning: warning,
            failures_before_critical: critical,
            deregister_after: None,
        });
        let mut status = CheckStatus::Critical;
        let results = results.chars().map(|letter| match letter {
            'p' => CheckStatus::Passing,
            'w' => CheckStatus::Warning,
            _ => CheckStatus::Critical,
        });
        let statuses = results.map(|result| {
            status = threshold.observe(result, status);
            match status {
                CheckStatus::Passing => 'P',
                CheckStatus::Warning => 'W',
                CheckStatus::Critical => 'C',
            }
        });
        statuses.collect()
    }

    #[test]
    fn without_thresholds_every_result_counts_at_once() {
        assert_eq!(play(1, 1, 1, "pwfp"), "PWCP");
        assert_eq!(play(0, 0, 0, "pwfp"), "PWCP");
    }

    #[test]
    fn passing_takes_successes_in_a_row() {
        assert_eq!(play(3, 1, 1, "ppfppp"), "CCCCCP");
        assert_eq!(play(2, 1, 1, "pw"), "CW");
    }

    #[test]
    fn failing_goes_through_warning_and_a_success_starts_over() {
        assert_eq!(play(1, 2, 4, "pffffpf"), "PPWWCPP");
        assert_eq!(play(1, 3, 3, "pffpfff"), "PPPPPPC");
    }

    #[test]
    fn a_critical_check_never_improves_by_failing() {
        assert_eq!(play(2, 1, 3, "ffff"), "CCCC");
        assert_eq!(play(2, 1, 3, "ffffpf"), "CCCCCC");
    }
}
