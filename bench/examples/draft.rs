//! d
fn main(){ rcuwalk_bench::image::draft(std::path::Path::new("/work/wt/img"), rcuwalk_bench::walktrees::Shape{trees:20,dirs:100,files:1000}, &std::env::args().nth(1).unwrap()).unwrap() }
