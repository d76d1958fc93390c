//! The programs that docs/drivers.md shows.

use std::process::{Command, Output};

use libtest_mimic::{Failed, Trial};

use crate::database::{invoices, messages, order, orders, url};

pub(crate) const PROGRAMS: [Program; 4] = [
    Program { name: "orders_diesel", file: env!("CARGO_BIN_EXE_orders_diesel") },
    Program { name: "orders_diesel_async", file: env!("CARGO_BIN_EXE_orders_diesel_async") },
    Program { name: "orders_sea_orm", file: env!("CARGO_BIN_EXE_orders_sea_orm") },
    Program { name: "orders_tokio_postgres", file: env!("CARGO_BIN_EXE_orders_tokio_postgres") },
];

#[derive(Clone, Copy)]
pub(crate) struct Program {
    pub(crate) name: &'static str,
    pub(crate) file: &'static str,
}

pub(crate) fn trials() -> Vec<Trial> {
    let trial = |name: String, run: fn(Program), program| {
        Trial::test(name, move || -> Result<(), Failed> {
            run(program);
            Ok(())
        })
    };
    let each = PROGRAMS.into_iter().map(|program| {
        trial(format!("page/{}/places_and_bills_once", program.name), places_and_bills_once, program)
    });
    each.collect()
}

fn ran(program: Program, order: i64) -> Output {
    let mut command = Command::new(program.file);
    command.arg(order.to_string()).env("DATABASE_URL", url()).output().expect("it runs")
}

fn places_and_bills_once(program: Program) {
    let order = order();
    let output = ran(program, order);
    let text = String::from_utf8_lossy(&output.stdout);
    let lines: Vec<&str> = text.lines().collect();
    let [placed, first, second] = lines[..] else { panic!("{output:?}") };
    assert!(placed.starts_with(&format!("placed order {order}: message ")), "{placed}");
    assert!(first.starts_with("first delivery: Applied("), "{first}");
    assert!(second.starts_with("second delivery: Known("), "{second}");
    assert_eq!((orders(order), messages(order), invoices(order)), ("1".into(), "1".into(), "1".into()));
    // A second run is refused by the key of the business row, and leaves no message.
    assert!(!ran(program, order).status.success());
    assert_eq!(messages(order), "1");
}
