//! What fuzzing starts from, and what it has found, again; and the same damaged at random.

#[path = "../../../fuzz/properties/corpus.rs"]
mod corpus;
#[path = "../../../fuzz/properties/damage.rs"]
mod damage;
#[path = "../../../fuzz/properties/filter.rs"]
mod property;

#[test]
fn what_is_kept_holds() {
    corpus::replay("filter", property::filter);
}

proptest::proptest! {
    #[test]
    fn what_is_damaged_holds(data in damage::damaged(corpus::kept("filter"))) {
        property::filter(&data);
    }
}
