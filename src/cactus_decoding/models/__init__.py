"""What can score ids and be rewound."""
